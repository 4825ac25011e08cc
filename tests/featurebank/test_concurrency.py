"""One writer, many readers, and processes that are forked, spawned or killed."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from nncsl.featurebank import BankLocked, FeatureBank
from tests.featurebank.support import dense_keys, unit_rows

HOLD = (
    "import sys, time; from featurebank import FeatureBank\n"
    "bank = FeatureBank.open(sys.argv[1], 'a'); print('holding', flush=True); time.sleep(60)"
)


@pytest.fixture
def path(tmp_path):
    ids, slots = dense_keys(30, 2)
    with FeatureBank.create(tmp_path / "bank", codec="fp32") as bank:
        bank.write(ids, slots, unit_rows(60))
        bank.commit()
    return tmp_path / "bank"


def forked(work) -> int:
    """Start `work` in a forked child; its process id."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child


def succeeded(child: int) -> bool:
    """Wait for a forked child: whether it ended without an exception."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_second_writer_is_told_who_writes_until_that_one_dies(path):
    with subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout.readline() == "holding\n"
            with pytest.raises(BankLocked, match=rf"written by process {other.pid} on .* since .*mode='r'"):
                FeatureBank.open(path, "a")
            with pytest.raises(BankLocked, match=str(other.pid)):
                FeatureBank.create(path, overwrite=True)
            with FeatureBank.open(path) as reader:
                assert len(reader) == 60
        finally:
            other.send_signal(signal.SIGKILL)
    with FeatureBank.open(path, "a"), pytest.raises(BankLocked, match=f"process {os.getpid()} "):
        FeatureBank.open(path, "a")
    assert not (path / "LOCK").exists()


def test_a_forked_child_reads_but_neither_writes_nor_unlocks(path):
    ids, slots = dense_keys(30, 2)
    with FeatureBank.open(path, "a") as bank:
        bank.write([99], [0], unit_rows(1))

        def child():
            assert torch.equal(bank.read(ids, slots), unit_rows(60))
            for refused in (bank.commit, lambda: bank.write([98], [0], unit_rows(1))):
                with pytest.raises(RuntimeError, match="forked process may only read"):
                    refused()
            bank.close()
            with pytest.raises(BankLocked):
                FeatureBank.open(path, "a")

        assert succeeded(forked(child))
        bank.commit()
        assert bank.contains([99], [0]).all()


def test_an_orphaned_child_does_not_keep_the_lock(path):
    """A killed trainer leaves DataLoader workers behind for a while; the bank must be free at once."""
    reading, writing = os.pipe()
    trainer = os.fork()
    if trainer == 0:
        bank = FeatureBank.open(path, "a")
        worker = os.fork()
        if worker == 0:
            assert bank is not None
            time.sleep(60)
            os._exit(0)
        os.write(writing, str(worker).encode())
        time.sleep(60)
        os._exit(0)
    worker = int(os.read(reading, 20))
    os.kill(trainer, signal.SIGKILL)
    os.waitpid(trainer, 0)
    try:
        FeatureBank.open(path, "a").close()
    finally:
        os.kill(worker, signal.SIGKILL)


def test_readers_never_see_a_half_changed_bank(tmp_path):
    """Readers open again and again while a writer begins generations and evicts the old ones under them."""
    path, rows = tmp_path / "bank", torch.arange(200)
    with FeatureBank.create(path, dim=8, codec="fp32", teacher="0") as bank:
        bank.write(rows, rows, torch.zeros(200, 8))
        bank.commit()
        stop = time.monotonic() + 3

        def reader():
            opened, seen = 0, set()
            while time.monotonic() < stop:
                with FeatureBank.open(path, residency=("ram", "disk")[opened % 2]) as reading:
                    value = float(reading.manifest.teacher)
                    assert torch.equal(reading.read(rows, rows), torch.full((200, 8), value))
                    assert reading.verify()
                opened += 1
                seen.add(value)
            assert opened > 5 and len(seen) > 1, (opened, seen)

        children = [forked(reader) for _ in range(3)]
        number = 0
        while time.monotonic() < stop:
            number += 1
            old = bank.generation
            bank.begin_generation(str(number))
            bank.write(rows, rows, torch.full((200, 8), float(number)))
            bank.commit()
            bank.evict(generation=old)
        assert [succeeded(child) for child in children] == [True] * 3


class Rows(Dataset):
    def __init__(self, bank):
        self.bank = bank

    def __len__(self):
        return 60

    def __getitem__(self, row):
        try:
            self.bank.index().search(torch.zeros(1, 128))
        except RuntimeError as error:
            assert "DataLoader worker" in str(error)
        else:
            raise AssertionError("FAISS must be refused in workers")
        return self.bank.read([row // 2], [row % 2])[0]


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("residency", ["ram", "disk"])
def test_dataloader_workers(path, method, residency):
    with FeatureBank.open(path, residency=residency) as bank:
        bank.index().search(torch.zeros(1, 128), 1)
        loader = DataLoader(Rows(bank), 10, num_workers=1, multiprocessing_context=multiprocessing.get_context(method))
        assert torch.equal(torch.cat(list(loader)), unit_rows(60))


def test_faiss_is_refused_after_a_fork_instead_of_hanging(path):
    with FeatureBank.open(path) as bank:
        index = bank.index()
        index.search(unit_rows(3), 1)

        def child():
            with pytest.raises(RuntimeError, match=f"used by process {os.getppid()} before it forked"):
                index.search(unit_rows(3), 1)

        assert succeeded(forked(child))


def test_a_pickled_bank_is_a_reader_of_the_same_generation(path):
    with FeatureBank.open(path, "a", residency="disk") as bank:
        old = bank.generation
        copy = pickle.loads(pickle.dumps(bank))
        bank.begin_generation("next")
        bank.commit()
        assert (copy.mode, copy.generation, len(copy)) == ("r", old, 60)
        copy.close()
