"""A full disk, a read-only directory, a newer format, foreign damage: clean errors, and the earlier state intact."""

import errno
import json
import os
import resource
import subprocess
import sys

import pytest
import torch

from nncsl.featurebank import BankTooNew, CorruptBank, FeatureBank
from nncsl.featurebank.files import Disk
from nncsl.featurebank.manifest import CURRENT, State, parse_state, sha256
from tests.featurebank.support import unit_rows


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of 1 MB."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"can't mount a small file system here: {done.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def first_rows(path):
    with FeatureBank.create(path, codec="fp32") as bank:
        bank.write(range(100), [0] * 100, unit_rows(100))
        bank.commit()


def rows_are_intact(path):
    with FeatureBank.open(path) as bank:
        return len(bank) == 100 and torch.equal(bank.read(range(100), [0] * 100), unit_rows(100))


FILL = """
import sys, torch
from nncsl.featurebank import FeatureBank
path, rows, slots = sys.argv[1], int(sys.argv[2]), 100
if len(sys.argv) > 3:
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]),) * 2)
bank = FeatureBank.open(path, "a")
try:
    for slot in range(1, slots):
        bank.write(range(rows), [slot] * rows, torch.ones(rows, 128))
    bank.commit()
except OSError as error:
    print(type(error).__name__, error)
    bank.rollback()
    bank.write(range(10), [1] * 10, torch.ones(10, 128))
    bank.commit()
    assert len(bank) == 110
    bank.evict(role="unlabeled")
    bank.close()
    print("still usable")
"""


@pytest.mark.parametrize("rows", [300, 37, 1])
def test_disk_full_while_writing(small_disk, rows):
    first_rows(small_disk / "bank")
    free = os.statvfs(small_disk).f_bavail * 4096
    filler = bytes(max(0, free - (rows * 128 * 4 * 90 if rows < 300 else free)))
    (small_disk / "filler").write_bytes(filler)
    code = FILL.replace('bank.evict(role="unlabeled")', "")
    done = subprocess.run([sys.executable, "-c", code, small_disk / "bank", str(rows)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "No space left on device: writing needs" in done.stdout and "bytes, " in done.stdout
    assert "are free; what was committed before is intact; free some space" in done.stdout
    assert done.stdout.endswith("still usable\n")
    with FeatureBank.open(small_disk / "bank") as bank:
        assert torch.equal(bank.read(range(100), [0] * 100), unit_rows(100)) and len(bank) == 110


def test_file_too_large_is_the_same_kind_of_error(tmp_path):
    """Needs no mount: a limit on the size of files."""
    first_rows(tmp_path / "bank")
    done = subprocess.run(
        [sys.executable, "-c", FILL, tmp_path / "bank", "300", "400000"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "File too large: writing needs 159,000 bytes" in done.stdout and done.stdout.endswith("still usable\n")


def test_a_write_refused_half_way_leaves_nothing_in_the_shard(tmp_path):
    """The rows before and after it are committed together, without what had already reached the file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with FeatureBank.create(tmp_path / "bank", codec="fp32") as bank:
        bank.write(range(10), [1] * 10, unit_rows(10))
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
            with pytest.raises(OSError, match="File too large: writing needs 530,000 bytes"):
                bank.write(range(1000), [2] * 1000, unit_rows(1000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        bank.write(range(5), [2] * 5, unit_rows(5, seed=3))
        bank.commit()
        assert bank.verify() and len(bank) == 15
        expected = torch.cat([unit_rows(10), unit_rows(5, seed=3)])
        assert torch.equal(bank.read([*range(10), *range(5)], [1] * 10 + [2] * 5), expected)


def test_disk_full_at_every_step_of_a_commit(small_disk):
    """Leave a little more room each time, so that the disk is full at every place where a commit writes."""
    first_rows(small_disk / "bank")
    failed = 0
    for room in range(0, 40_960 * 2, 4096):
        filler = small_disk / "filler"
        filler.unlink(missing_ok=True)
        with FeatureBank.open(small_disk / "bank", "a") as bank:
            before = len(bank)
            filler.write_bytes(bytes(os.statvfs(small_disk).f_bavail * 4096 - room))
            try:
                for role, slot in (("support", room * 2 + 1), ("replay", room * 2 + 2)):
                    bank.write(range(30), [slot] * 30, unit_rows(30), role=role)
                bank.commit()
            except OSError as error:
                failed += 1
                assert "writing needs" in str(error), error
                bank.rollback()
            filler.unlink()
            assert bank.verify() and len(bank) in (before, before + 60)
            for role in ("support", "replay"):
                bank.evict(role=role)
        assert rows_are_intact(small_disk / "bank")
    assert 5 < failed < 20


def test_read_only_directory(small_disk):
    first_rows(small_disk / "bank")
    bank = FeatureBank.open(small_disk / "bank", "a")
    os.close(bank._store.lock._descriptor)  # a file open for writing would keep the file system writable
    bank._store.lock._descriptor = None
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for attempt in (
        lambda: bank.write([500], [0], unit_rows(1)),
        lambda: bank.evict(role="unlabeled"),
        lambda: FeatureBank.open(small_disk / "bank", "a"),
        lambda: FeatureBank.create(small_disk / "other"),
    ):
        with pytest.raises(OSError, match=r"Read-only file system: writing needs .* bytes, .* are free.*mode='r'"):
            attempt()
    assert rows_are_intact(small_disk / "bank")
    bank.close()


class FailingDisk(Disk):
    """Works until it has done `remaining` operations, then every one fails."""

    remaining = 10**9

    def __getattribute__(self, name):
        if name in ("create", "write", "truncate", "sync", "replace", "sync_directory"):
            FailingDisk.remaining -= 1
            if FailingDisk.remaining < 0:
                raise OSError(errno.EIO, "the disk is dying")
        return super().__getattribute__(name)


class DoomedBank(FeatureBank):
    disk = FailingDisk()


CHANGES = {
    "commit": lambda bank: (bank.write(range(5), [1] * 5, unit_rows(5), role="support"), bank.commit()),
    "evict role": lambda bank: bank.evict(role="unlabeled"),
    "evict generation": lambda bank: bank.evict(generation=1),
    "begin": lambda bank: (bank.begin_generation("new"), bank.write([1], [0], unit_rows(1)), bank.commit()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_error_at_any_operation_leaves_a_good_bank(tmp_path, change):
    """Also when it strikes after the new state has taken effect, whose files must then not be cleaned up."""
    outcomes = []
    for remaining in range(100):
        path = tmp_path / str(remaining)
        first_rows(path)
        with FeatureBank.open(path, "a") as bank:
            bank.begin_generation("second")
            bank.write(range(7), [0] * 7, unit_rows(7))
            bank.commit()
        bank = DoomedBank.open(path, "a")
        before = bank.generations
        FailingDisk.remaining = remaining
        try:
            CHANGES[change](bank)
            failed = False
        except OSError:
            failed = True
        FailingDisk.remaining = 10**9
        bank.rollback()
        assert bank.verify()
        with FeatureBank.open(path, generation=bank.generation) as reader:
            assert reader.manifest == bank.manifest and reader.generations == bank.generations
            assert len(reader) == len(bank)
        outcomes.append((failed, bank.generations == before))
        bank.write([999], [9], unit_rows(1), role="replay")
        bank.commit()
        assert torch.allclose(bank.read([999], [9]), unit_rows(1), atol=1e-3)
        bank.close()
        FeatureBank.open(path, "a").close()
        if not failed:
            break
    assert outcomes[-1] == (False, False) and outcomes[0] == (True, True)
    assert (True, False) in outcomes, "no error came after the change had taken effect"


def rewritten_manifest(path, change):
    """As another program might write it: manifest changed, all checksums right."""
    current = parse_state(path, (path / CURRENT).read_bytes())
    manifest = path / current.generations[0].file
    fields = json.loads(manifest.read_bytes())
    fields.update(change)
    manifest.write_text(json.dumps(fields))
    body = f"{manifest.name} {sha256(manifest.read_bytes())}\nnext-generation 2\n".encode()
    (path / CURRENT).write_bytes(body + f"checksum {sha256(body)}\n".encode())


def test_a_newer_format_is_refused_politely(tmp_path):
    first_rows(tmp_path / "bank")
    rewritten_manifest(tmp_path / "bank", {"version": 2, "shape_of_things_to_come": []})
    with pytest.raises(BankTooNew, match="format version 2, this program reads up to 1; upgrade"):
        FeatureBank.open(tmp_path / "bank")


def test_a_missing_file_is_named(tmp_path):
    for pattern in ("shards/*.h5", "MANIFEST-*.json"):
        path = tmp_path / pattern[0]
        first_rows(path)
        (file,) = path.glob(pattern)
        file.unlink()
        for mode in ("r", "a"):
            with pytest.raises(CorruptBank, match=f"{file.name}: is listed in the bank but missing; restore"):
                FeatureBank.open(path, mode)


def test_verification_on_open_can_be_switched_off(tmp_path):
    first_rows(tmp_path / "bank")
    (file,) = (tmp_path / "bank").glob("shards/*.h5")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with FeatureBank.open(tmp_path / "bank", verify=False) as bank:
        assert len(bank) == 100
        with pytest.raises(CorruptBank, match=file.name):
            bank.verify()
    file.write_bytes(content[:100])
    with pytest.raises(CorruptBank, match=f"{file.name}.*verify=True"):
        FeatureBank.open(tmp_path / "bank", verify=False)


def test_leftovers_are_removed_by_the_next_writer_only(tmp_path):
    path = tmp_path / "bank"
    first_rows(path)
    names = ("CURRENT.tmp", "MANIFEST-000001-0002.json", "shards/000001-unlabeled-0002.h5", "shards/x.h5.tmp")
    for name in names:
        (path / name).write_text("left by a crash")
    FeatureBank.open(path).close()
    assert all((path / name).exists() for name in names), "a reader changes nothing"
    FeatureBank.open(path, "a").close()
    assert not any((path / name).exists() for name in names)
    assert rows_are_intact(path)


def test_state_survives_its_own_text(tmp_path):
    first_rows(tmp_path / "bank")
    content = (tmp_path / "bank" / CURRENT).read_bytes()
    state = parse_state(tmp_path / "bank", content)
    assert isinstance(state, State) and state.to_bytes() == content


MEASURE = """
import sys
import torch
from nncsl.featurebank import FeatureBank

def resident():
    fields = dict(line.split(":") for line in open("/proc/self/status") if line.startswith("Vm"))
    return [int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM")]

torch.zeros(10).half().float()
before = resident()[0]
with FeatureBank.open(sys.argv[1], residency="disk") as bank:
    assert len(bank) == 800_000 and bank.verify()
    pick = torch.Generator().manual_seed(0)
    for _ in range(400):
        ids, slots = torch.randint(50_000, (1084,), generator=pick), torch.randint(16, (1084,), generator=pick)
        features = bank.read(ids, slots)
        assert torch.equal(features[:, 0].half(), (ids % 1000 / 1000 + slots).half())
    print(bank.nbytes, resident()[1] - before)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc")  # noqa: PTH110
def test_a_large_bank_served_from_disk_takes_less_memory_than_its_size(tmp_path):
    """50,000 x 16 slots, fp16: 205 MB. Peak memory of opening, verifying and 433,600 random reads."""
    with FeatureBank.create(tmp_path / "bank") as bank:
        for slot in range(16):
            ids = torch.arange(50_000)
            bank.write(ids, torch.full((50_000,), slot), (ids % 1000 / 1000 + slot)[:, None].expand(-1, 128))
        bank.commit()
        nbytes = bank.nbytes
    done = subprocess.run([sys.executable, "-c", MEASURE, tmp_path / "bank"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    size, grown = map(int, done.stdout.split())
    print(f"bank {size / 1e6:.0f} MB, peak memory {grown / 1e6:.0f} MB")
    assert size == nbytes > 204_800_000
    assert grown < size
