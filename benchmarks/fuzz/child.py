"""One case in a forked child of a process that has everything imported, within limits of time and memory."""

import contextlib
import csv
import ctypes
import gc
import os
import random
import re
import resource
import shutil
import signal
import sys
import time
import traceback
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

from .case import Case

SECONDS = 10.0  # of the processor
BLOCKED = 5.0  # seconds without using it
GRACE = 6.0  # for a run that trains, after it was asked to stop
ADDRESS_SPACE = 3 << 29  # beyond what the warm process has
RESIDENT = 1 << 30  # likewise
LARGEST_FILE = 1 << 30
UNSHARE_MOUNTS, BIND, REMOUNT, READ_ONLY, RECURSIVE, PRIVATE = 0x20000, 4096, 32, 1, 16384, 1 << 18  # of Linux
PREDICTED_PARTLY = 1
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class _Active(HTMLParser):
    """What a browser would fetch or execute in a page that should have everything inside."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            fetched = name in ("src", "href") and not (value or "").startswith(("data:image/png", "data:,", "#"))
            if fetched or name.startswith("on"):
                self.found.append(f"<{tag} {name}={value}>")

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script" and "alert(1)" in data:
            self.found.append(data[:80])


class Outcome(NamedTuple):
    """kind: ok, or what went wrong; detail: the line that says it."""

    kind: str
    detail: str
    seconds: float


def warm() -> None:
    """Import what commands import while they work, so no case pays for it; compute nothing: threads don't fork."""
    import faiss  # noqa: F401
    import matplotlib.figure  # noqa: F401
    import safetensors.torch  # noqa: F401
    import shtab  # noqa: F401
    import sklearn.datasets
    import sklearn.manifold  # noqa: F401
    import torch._dynamo

    import nncsl.banks.export
    import nncsl.banks.info
    import nncsl.banks.query
    import nncsl.banks.sheet
    import nncsl.cli
    import nncsl.data.sheets
    import nncsl.export.formats
    import nncsl.report.compare
    import nncsl.report.single
    import nncsl.runs
    import nncsl.use  # noqa: F401

    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # a child's collector then touches, and so copies, none of this
    protect_devices()


def protect_devices() -> None:
    """Make /dev read-only for this process and its children, where it is root's: a file renamed over a device stays."""
    if os.getuid():
        return
    libc = ctypes.CDLL(None)
    failed = libc.unshare(UNSHARE_MOUNTS) or libc.mount(None, b"/", None, RECURSIVE | PRIVATE, None)
    failed = failed or libc.mount(b"/dev", b"/dev", None, BIND, None)
    failed = failed or libc.mount(None, b"/dev", None, BIND | REMOUNT | READ_ONLY, None)
    if failed:
        print("note: running as root, and /dev could not be protected", flush=True)


def run(case: Case, number: int, seed: int, template: Path, work: Path) -> Outcome:
    """Run a case in a folder of its own and judge how it ended."""
    folder = work / f"case-{number}"
    shutil.rmtree(folder, ignore_errors=True)
    inside = folder / "inside"
    inside.mkdir(parents=True)
    if case.prepare is not None:
        case.prepare(inside, template, random.Random(f"{seed} {number}"))
    before = {path.name for path in inside.iterdir()}
    started = time.monotonic()
    status, peak, hung = forked(case.words, inside, folder)
    seconds = time.monotonic() - started
    said = [_text(folder / name) for name in ("stdout", "stderr")]
    kind, detail = _judged(case, inside, before, status, peak, hung, *said)
    shutil.rmtree(folder, ignore_errors=True)
    return Outcome(kind, detail, seconds)


def forked(words: tuple[str, ...], inside: Path, folder: Path, limit: float = SECONDS) -> tuple[int, int, bool]:
    """Run a command in a child; its output goes to files in ``folder``.

    Return the exit code (negative: the signal), the peak of resident memory beyond the warm process, and whether it
    had to be killed."""
    own = _resident()
    pid = os.fork()
    if not pid:
        _work(words, inside, folder)
    asked = hung = False
    allowed, pause, used, moved = limit, 0.001, 0.0, time.monotonic()
    while True:
        found, status, usage = os.wait4(pid, os.WNOHANG)
        if found:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # whatever it has left running
            return os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024 - own, hung
        time.sleep(pause)
        pause = min(0.02, 2 * pause)
        (state, seconds), now = _condition(pid), time.monotonic()
        if seconds > used + 0.1 or state in "RD":  # on a busy machine it may wait for a core or the disk
            used, moved = seconds, now
        if hung or (seconds < allowed and now - moved < max(BLOCKED, allowed - SECONDS)):
            continue
        if not asked and (inside / "out" / "checkpoint").exists():
            os.kill(pid, signal.SIGINT)  # a run that trains may take its time, if it stops when it is asked to
            asked, allowed = True, allowed + GRACE
        else:
            os.killpg(pid, signal.SIGKILL)
            hung = True


def _condition(pid: int) -> tuple[str, float]:
    """A child's state as Linux has it, and its seconds of the processor: they mean the same on a busy machine."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return "?", 0.0
    return fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _work(words: tuple[str, ...], inside: Path, folder: Path) -> None:
    """In the child: run the command; never returns."""
    code = 1
    try:
        os.setsid()
        os.chdir(inside)
        for name, number in (("stdout", 1), ("stderr", 2)):
            os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout, sys.stderr = (open(n, "w", encoding="utf-8", closefd=False) for n in (1, 2))  # noqa: SIM115
        sys.stderr.reconfigure(errors="backslashreplace")  # as Python itself has it
        os.environ |= {"XDG_CACHE_HOME": str(folder / "cache"), "HOME": str(folder)}
        limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + ADDRESS_SPACE
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
        sys.argv = ["nncsl", *words]
        from nncsl.cli import main

        code = main(list(words))
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _judged(
    case: Case, inside: Path, before: set[str], code: int, peak: int, hung: bool, out: str, err: str
) -> tuple[str, str]:
    last = next((line for line in reversed(err.strip().splitlines()) if line), "")[:300]
    if hung:
        return "hang", f"over {SECONDS:g} s"
    if peak > RESIDENT or "MemoryError" in err or "can't allocate memory" in err:
        return "memory", f"{peak / 1e9:.2f} GB; {last}"
    if "Traceback (most recent call last)" in err or code < 0:
        return "traceback", last or f"signal {-code}"
    if raw := RAW.search(out + err):
        return "output", f"raw {raw[0]!r} in {(out + err)[max(0, raw.start() - 40) : raw.end() + 20]!r}"
    if forged := _forged(inside, out if prints_a_table(case) else ""):
        return "output", forged
    allowed = {"refused": {2, 3}, "done": {0}, "any": {0, 2, 3, 130}}[case.expected]
    if case.command == "predict":
        allowed = allowed | {PREDICTED_PARTLY}
    if code not in allowed:
        return "exit code", f"{code}, expected one of {sorted(allowed)}; {last}"
    left = {path.name for path in inside.iterdir()} - before
    if code == 2 and case.command == "train" and left - {"cache"}:
        return "leftover", f"refused, but made {sorted(left)}"
    return "ok", ""


def prints_a_table(case: Case) -> bool:
    """Return whether a case's output is csv; where the table goes to a file, it is the file's name."""
    return case.command == "metrics" and not any(re.match("--?o", word) for word in case.words)


def _forged(inside: Path, table: str) -> str:
    """What a report or a csv file lets through that a browser or a spreadsheet would act upon; "" if all is well."""
    for page in [*inside.glob("*.html"), *inside.glob("run/report.html")]:
        parser = _Active()
        parser.feed(_text(page))
        if parser.found:
            return f"{page.name} has {parser.found[0][:80]!r}"
    for text in (table, *(_text(path) for path in inside.glob("*.csv"))):
        for row in csv.reader(text.splitlines()):
            for cell in row:
                if cell.startswith(("=", "@", "\t")) or re.match(r"[+-](?![\d.]|inf|nan)", cell):
                    return f"a cell begins like a formula: {cell[:40]!r}"
    return ""


def _text(path: Path) -> str:
    try:
        return path.read_bytes()[: 4 << 20].decode(errors="surrogateescape")
    except OSError:
        return ""


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
