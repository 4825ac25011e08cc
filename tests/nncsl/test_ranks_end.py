"""How runs of several ranks end: a rank is killed, all are stopped, torchrun restarts them, a machine is cut off."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from nncsl import cli, distributed, methods, runs
from nncsl.record import checkpoint
from tests.nncsl.crew import processes

ROOT = Path(__file__).parents[2]
SMALL = ["--quiet", "--no-report", "--tasks", "2", "--bank-views", "1", "--set", "unlabeled_batch=160"]
SMALL += ["--set", "network.width=8", "--set", "network.hidden=16"]


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def rank(number, port, arguments, log, last):
    """A process as torchrun starts it; in step ``last`` of the first task it sends itself a signal: (step, signal)."""
    torch.set_num_threads(1)
    os.environ.update(RANK=str(number), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    declared = methods.find("nncsl")
    losses = declared.losses

    def ending(self, step):
        if last and step.now.number == last[0]:
            os.kill(os.getpid(), last[1])
        return losses(self, step)

    declared.losses = ending
    with log.open("w", buffering=1) as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        code = cli.main(["train", *arguments])
    os._exit(code)  # as fast as a command ends; the fork server has no use for what it leaves


def both(folder, last, first=None):
    """Exit codes and words of two ranks, the second of which gets a signal in one of its steps, the first perhaps."""
    port, arguments = free_port(), ["--out", str(folder), "--epochs", "12", *SMALL]
    logs = [folder.with_name(f"rank-{number}.log") for number in (0, 1)]
    started = [
        processes.Process(target=rank, args=(number, port, arguments, logs[number], last if number else first))
        for number in (0, 1)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join(60)
    return [process.exitcode for process in started], [log.read_text() for log in logs]


def test_a_killed_rank_ends_the_run_and_leaves_its_checkpoint(tmp_path):
    folder = tmp_path / "run"
    began = time.monotonic()
    codes, words = both(folder, (7, signal.SIGKILL))
    assert codes == [4, -signal.SIGKILL]
    assert time.monotonic() - began < 50
    (line,) = [line for line in words[0].splitlines() if line.startswith("nncsl: ")]
    assert "another rank has ended" in line and f"nncsl train --resume {folder}" in line
    saved = checkpoint.load(folder / "checkpoint" / "state.pt")["state"]
    assert saved["task"] == 0 and saved["epoch"] > 0
    summary = runs.resume(folder, [], quiet=True)  # on one rank
    assert len(summary["accuracy_matrix"]) == 2 and "ranks" not in summary


def test_one_rank_asked_to_stop_stops_all_with_one_checkpoint(tmp_path):
    folder = tmp_path / "run"
    codes, words = both(folder, (7, signal.SIGTERM))
    assert codes == [130, 130]
    assert words[0].splitlines()[-1] == f"nncsl: interrupted; continue with: nncsl train --resume {folder}"
    assert words[1] == ""  # one speaks for all
    saved = checkpoint.load(folder / "checkpoint" / "state.pt")["state"]
    steps = saved["steps"][0]
    assert 7 < saved["epoch"] * steps + saved["step"] <= 7 + 3  # agreed on within two steps


def test_a_rank_that_was_asked_to_stop_says_so_also_when_the_other_ends_first(tmp_path):
    """As at a run's end, where one is in the loop over steps and the other behind it."""
    codes, words = both(tmp_path / "run", (7, signal.SIGKILL), (7, signal.SIGTERM))
    assert codes == [130, -signal.SIGKILL]
    assert words[0].splitlines()[-1] == f"nncsl: interrupted; continue with: nncsl train --resume {tmp_path / 'run'}"


def test_a_rank_that_waits_for_others_stops_when_it_is_asked_to(tmp_path):
    """They may never come: torch waits for hours, and looks at no signal."""
    port, log = free_port(), tmp_path / "log"
    waiting = processes.Process(target=rank, args=(0, port, ["--out", str(tmp_path / "run"), *SMALL], log, None))
    waiting.start()
    with socket.socket() as knock:
        while knock.connect_ex(("127.0.0.1", port)):
            assert waiting.is_alive()
            time.sleep(0.05)
    os.kill(waiting.pid, signal.SIGTERM)
    waiting.join(20)
    assert waiting.exitcode == 130 and not (tmp_path / "run").exists()


def interrupted_alone(number, port):
    """Rank 1 leaves; rank 0 is interrupted at work that all wait for. Exit code: 130 if that is what it reports."""
    torch.set_num_threads(1)
    os.environ.update(RANK=str(number), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    ranks = distributed.connect()
    if number:
        os._exit(0)

    def work():
        time.sleep(0.5)
        raise KeyboardInterrupt

    try:
        ranks.first(work)
    except KeyboardInterrupt:
        os._exit(130)


def test_an_interrupted_rank_says_so_though_nobody_hears_it():
    port = free_port()
    started = [processes.Process(target=interrupted_alone, args=(number, port)) for number in (0, 1)]
    for process in started:
        process.start()
    for process in started:
        process.join(30)
    assert [process.exitcode for process in started] == [130, 0]


def wait_for(found, process, seconds=60):
    """Until ``found`` gives something that is true."""
    end = time.monotonic() + seconds
    while not (value := found()):
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.1)
    return value


def epochs(folder):
    path = folder / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def test_torchrun_restarts_a_run_that_lost_a_rank_and_ctrl_c_ends_it(tmp_path):
    folder, log = tmp_path / "run", tmp_path / "log"
    command = [sys.executable, "-m", "nncsl", "train", "--ranks", "2", "--max-restarts", "1"]
    command += ["--out", str(folder), "--epochs", "1000", *SMALL]
    with log.open("w") as file:
        launcher = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file)
    try:
        wait_for(lambda: epochs(folder) > 2, launcher)
        children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        (second,) = [pid for pid in children if b"\0RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes()]
        before = epochs(folder)
        os.kill(int(second), signal.SIGKILL)
        wait_for(lambda: "(resumed)" in log.read_text(), launcher)
        wait_for(lambda: epochs(folder) > before + 2, launcher)
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(60) == 130
    finally:
        launcher.kill()
    words = log.read_text()
    assert "Traceback" not in words and "nncsl: interrupted; continue with" in words
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == list(range(len(lines)))  # each once, though some were begun twice


class TwoMachines:
    """Two network namespaces with a cable between them."""

    def __init__(self):
        self.names = [f"nncsl{os.getpid()}{end}" for end in "ab"]
        self.cards = [f"nn{os.getpid()}{end}" for end in "ab"]

    def __enter__(self):
        if shutil.which("ip") is None or os.geteuid():
            pytest.skip("two machines are made with `ip netns`: it needs iproute2 and root")
        try:
            for name in self.names:
                ip("netns", "add", name)
            first, second = self.names
            ip("link", "add", self.cards[0], "netns", first, "type", "veth", "peer", self.cards[1], "netns", second)
            for number, (name, card) in enumerate(zip(self.names, self.cards, strict=True), 1):
                ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", card)
                for device in ("lo", card):
                    ip("-n", name, "link", "set", device, "up")
        except subprocess.CalledProcessError as error:
            self.__exit__()
            pytest.skip(f"this machine makes no network namespaces: {error.stderr.strip()}")
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def start(self, number, log, *arguments):
        """A machine's torchrun."""
        command = ["ip", "netns", "exec", self.names[number], sys.executable, "-m", "torch.distributed.run"]
        command += ["--nnodes", "2", "--nproc-per-node", "1", "--node-rank", str(number)]
        command += ["--master-addr", "10.77.0.1", "--master-port", "29400", "-m", "nncsl", "train", *arguments]
        environment = os.environ | {"GLOO_SOCKET_IFNAME": self.cards[number], "OMP_NUM_THREADS": "1"}
        with log.open("w") as file:
            return subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file, env=environment)

    def cut(self):
        ip("-n", self.names[1], "link", "set", self.cards[1], "down")


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def test_a_machine_that_is_cut_off_ends_the_run_which_can_be_resumed(tmp_path):
    folder, logs = tmp_path / "run", [tmp_path / "first.log", tmp_path / "second.log"]
    arguments = ["--out", str(folder), "--epochs", "15", "--set", "ranks_timeout=3", *SMALL]
    with TwoMachines() as machines:
        started = [machines.start(number, logs[number], *arguments) for number in (0, 1)]
        try:
            wait_for(lambda: epochs(folder) > 2, started[0])
            machines.cut()
            began = time.monotonic()
            codes = [process.wait(60) for process in started]
        finally:
            for process in started:
                process.kill()
    assert codes == [1, 1] and time.monotonic() - began < 45  # torchrun's own codes
    for log in logs:
        (line,) = [line for line in log.read_text().splitlines() if line.startswith("nncsl: ")]
        assert "can't be reached" in line and f"nncsl train --resume {folder}" in line
    assert not (folder / "summary.json").exists()
    summary = runs.resume(folder, [], quiet=True)
    assert len(summary["accuracy_matrix"]) == 2
