"""Headless Chromium, driven over its DevTools pipe: what a page logs and asks for is seen, clicks are real."""

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

BINARY = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


class Browser:
    """One page. requests: every URL it asked for; complaints: console errors, warnings and uncaught exceptions."""

    def __init__(self, profile: Path) -> None:
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()

        def place_pipe() -> None:  # Chromium reads commands from 3 and writes answers to 4
            spare = [os.dup(commands), os.dup(answers)]
            spare = [fd if fd > 4 else os.dup(fd) for fd in spare]
            os.dup2(spare[0], 3)
            os.dup2(spare[1], 4)

        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--remote-debugging-pipe",
        ]
        flags += ["--no-first-run", "--hide-scrollbars", "--force-color-profile=srgb", f"--user-data-dir={profile}"]
        self._process = subprocess.Popen(
            [str(BINARY), *flags, "about:blank"],
            close_fds=False,
            preexec_fn=place_pipe,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._number, self._unread, self._session = 0, b"", None
        self.requests: list[str] = []
        self.complaints: list[str] = []
        targets = self._ask("Target.getTargets")["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")
        self._session = self._ask("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")

    def open(
        self, path: Path, *, width: int, dark: bool = False, phone: bool = False, scripts: bool = True, media: str = ""
    ) -> None:
        """Loads a file from disk and waits until it has come to rest. media: "print" shows it as on paper."""
        self.requests, self.complaints = [], []
        height = 844 if phone else 900
        self._ask("Emulation.setScriptExecutionDisabled", value=not scripts)
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._ask("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self._ask("Page.navigate", url=path.resolve().as_uri())
        deadline = time.monotonic() + 30
        while self.run("document.readyState") != "complete" or self.run("location.href") == "about:blank":
            assert time.monotonic() < deadline, "the page did not load"
            time.sleep(0.05)
        if scripts:
            self.run("new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))")

    def run(self, expression: str) -> object:
        """The value of a JavaScript expression in the page."""
        answer = self._ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def click(self, element: str) -> None:
        """Presses the mouse in the middle of the element that the expression gives."""
        self.hover(element)
        for kind in ("mousePressed", "mouseReleased"):
            self._ask("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **self._place)

    def hover(self, element: str) -> None:
        box = f"(e => (e.scrollIntoView({{block: 'center'}}), e.getBoundingClientRect().toJSON()))({element})"
        found = self.run(box)
        self._place = {"x": found["x"] + found["width"] / 2, "y": found["y"] + found["height"] / 2}
        self._ask("Input.dispatchMouseEvent", type="mouseMoved", **self._place)

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        taken = self._ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(taken["data"]))

    def print(self) -> bytes:
        """The page as a PDF file."""
        return base64.b64decode(self._ask("Page.printToPDF", preferCSSPageSize=True)["data"])

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=20)
        os.close(self._commands)
        os.close(self._answers)

    def _ask(self, method: str, **parameters: object) -> dict:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._note(answer)

    def _next(self) -> dict:
        while b"\0" not in self._unread:
            more = os.read(self._answers, 1 << 20)
            assert more, "Chromium went away"
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\0")
        return json.loads(line)

    def _note(self, event: dict) -> None:
        method, details = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(details["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(details["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and details["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(details["args"]))
        elif method == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
            self.complaints.append(details["entry"]["text"])
