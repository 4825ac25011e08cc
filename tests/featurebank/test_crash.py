"""Short version of `python -m nncsl.benchmarks.bank_crash`, and proof that it would notice a broken promise."""

import random
import re
import shutil
import subprocess
import sys

import pytest

from nncsl.benchmarks import bank_crash
from nncsl.benchmarks.bank_power import Operation, Recorder, Volume


def test_sigkill_at_random_moments(tmp_path):
    accidents = list(bank_crash.kills(tmp_path, count=40, seed=1))
    assert len(accidents) == 40
    assert any("0 leftovers" not in str(accident["outcome"]) for accident in accidents), "no kill hit a commit"


def test_every_write_of_a_commit_as_a_crash_point(tmp_path):
    accidents = list(bank_crash.crash_points(tmp_path, seed=2, steps=3, orders=2))
    assert len(accidents) > 150
    assert {accident["outcome"] for accident in accidents} == {"holds 0", "holds 1", "holds 2", "holds 3"}


@pytest.mark.parametrize("forgotten", ["sync", "sync_directory"])
def test_a_forgotten_sync_would_be_noticed(tmp_path, monkeypatch, forgotten):
    def deaf(self: Recorder, name: str, *args: object, **kwargs: object) -> None:
        if name != forgotten:
            note(self, name, *args, **kwargs)

    note = Recorder._note
    monkeypatch.setattr(Recorder, "_note", deaf)
    with pytest.raises(bank_crash.Broken):
        list(bank_crash.crash_points(tmp_path, seed=3, steps=3))


def test_damage_is_detected_and_named(tmp_path):
    assert len(list(bank_crash.damages(tmp_path, flips=40, truncations=40, seed=4))) == 80


def test_directories_are_durable_before_anything_refers_to_them(tmp_path):
    operations = bank_crash.record_history(tmp_path / "deep" / "bank", 1).operations
    first_name = next(n for n, operation in enumerate(operations) if operation.name == "create")
    before = [(operation.name, operation.path) for operation in operations[:first_name]]
    # ".." stands for every directory above the bank: the one that holds deep/ and deep/ itself.
    assert before == [("make_directory", "shards"), *[("sync_directory", path) for path in ("..", "..", ".")]]


def test_what_a_power_loss_leaves():
    """The model of the disk itself, on a case small enough to think through."""
    write = [Operation("create", "a.tmp"), Operation("write", "a.tmp", data=b"new"), Operation("sync", "a.tmp")]
    rename = [*write, Operation("replace", "a.tmp", "a")]
    assert Volume(rename).as_seen() == {"a": b"new"}
    assert Volume(rename).after_power_loss(None) == {}
    assert Volume([*rename, Operation("sync_directory", ".")]).after_power_loss(None) == {"a": b"new"}
    outcomes = {tuple(Volume(write[:2]).after_power_loss(random.Random(seed)).values()) for seed in range(200)}
    assert outcomes == {(), (b"",), (b"n",), (b"ne",), (b"new",), (b"\0\0\0",), (b"n\0\0",), (b"ne\0",)}


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace to see the real system calls")
def test_the_recording_is_what_the_kernel_sees(tmp_path):
    """The replay is only as good as the recording: compare it with the system calls of a real process."""
    script = (
        "from pathlib import Path; from benchmarks import bank_crash\n"
        f"for o in bank_crash.record_history(Path({str(tmp_path / 'bank')!r}), 4).operations: print(o.name, o.path)"
    )
    calls = "openat,pwrite64,write,fsync,fdatasync,ftruncate,rename,renameat,renameat2,unlink,unlinkat"
    log = tmp_path / "log"
    traced = ["strace", "-f", "-y", "-s", "0", "-e", f"trace={calls}", "-o", log, sys.executable, "-c", script]
    run = subprocess.run(traced, capture_output=True, text=True)
    if "ptrace" in run.stderr and run.returncode:
        pytest.skip(f"strace may not trace here: {run.stderr.strip()}")
    assert run.returncode == 0, run.stderr
    kernel = []
    for line in log.read_text().splitlines():
        if str(tmp_path / "bank") not in line or "LOCK" in line or "= -1" in line or " resumed>" in line:
            continue  # (a call that another thread interrupted is printed twice)
        call = re.search(r"(\w+)\(", line)[1]
        path = re.search(rf"{re.escape(str(tmp_path / 'bank'))}/?([^\">]*)", line)[1] or "."
        if call == "openat":
            if "O_CREAT" in line:
                kernel.append(f"create {path}")
        elif call == "fsync":
            kernel.append(f"sync_directory {path}" if path in (".", "shards") else f"sync {path}")
        else:
            names = {"pwrite64": "write", "ftruncate": "truncate", "rename": "replace", "unlink": "remove"}
            kernel.append(f"{names[call]} {path}")
    recorded = [line for line in run.stdout.splitlines() if not line.endswith(" ..") and "make_directory" not in line]
    assert len(kernel) > 50 and recorded == kernel
