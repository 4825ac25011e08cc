"""Systems without POSIX's calls: Python is bereft of them as on Windows, then a run trains and its bank is opened.

This is as near as Linux comes to it. What was run where is in docs/use.md.
"""

import os
import subprocess
import sys
from pathlib import Path

# Imported first: other people's packages are not what is tested, and take what they need while it is there.
BEREFT = """
import sys
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
import os, signal, tempfile, subprocess
import h5py, numpy, PIL.Image, rich.progress, sklearn.datasets, torch, torch.optim, torch.utils.data, yaml
for name in (
    "preadv", "pwritev", "pread", "pwrite", "posix_fallocate", "O_CLOEXEC", "O_DIRECTORY", "register_at_fork",
    "getloadavg", "sched_getaffinity",
):
    delattr(os, name)
"""
TRAINS = """
from nncsl import cli
settings = ["epochs=1", "warmup_epochs=0", "tasks=2", "network.width=8", "network.hidden=16", "bank_views=1"]
settings += ["memory=20", "unlabeled_batch=320", "spill=disk", "micro_batch=64"]
words = [part for setting in settings for part in ("--set", setting)]
assert cli.main(["train", "--quiet", "--no-report", "--device", "cpu", "--out", "run", *words]) == 0
assert cli.main(["bank", "verify", "run"]) == 0
assert cli.main(["doctor"]) == 0
from nncsl.featurebank import BankLocked, FeatureBank
with FeatureBank.open("run/bank", "a", residency="disk") as bank:
    ids, slots = bank.keys()
    assert bank.read(ids[:5], slots[:5]).shape == (5, 128)
    try:
        FeatureBank.open("run/bank", "a")
    except BankLocked as error:
        assert f"process {os.getpid()}" in str(error)
    else:
        raise AssertionError("two writers")
FeatureBank.open("run/bank", "a").close()  # let go
import nncsl
assert len(nncsl.load("run").predict(numpy.zeros((3, 8, 8, 1), numpy.uint8), by="neighbors")) == 3
print("all of it")
"""


def bereft(code, cwd):
    """Runs code of this checkout in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    words = [sys.executable, "-c", BEREFT + code]
    return subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True)


def test_without_posix_a_run_trains_and_its_bank_opens(tmp_path):
    done = bereft(TRAINS, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("all of it\n")


def test_the_bank_reads_the_same_without_preadv(tmp_path):
    """Rows in a file that is not mapped, read by several threads that share one place in it."""
    code = """
from concurrent.futures import ThreadPoolExecutor
from nncsl.featurebank import FeatureBank, table
table.LARGEST_MAPPING = 0
rows = torch.randn(300, 16)
with FeatureBank.create("bank", dim=16, codec="fp32", teacher="t", normalized=False) as bank:
    bank.write(torch.arange(300), torch.zeros(300, dtype=torch.int64), rows)
    bank.commit()
with FeatureBank.open("bank", residency="disk") as bank, ThreadPoolExecutor(4) as pool:
    wanted = [torch.randint(300, (50,)) for _ in range(40)]
    found = list(pool.map(lambda ids: bank.read(ids, torch.zeros_like(ids)), wanted))
    assert all(torch.equal(got, rows[ids]) for got, ids in zip(found, wanted))
"""
    done = bereft(code, tmp_path)
    assert done.returncode == 0, done.stderr
