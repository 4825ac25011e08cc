"""What stays with a reader whose rows are evicted, and with nobody when a disk fails; links are not followed."""

import errno
import os

import pytest
import torch

from nncsl.featurebank import CorruptBank, FeatureBank
from nncsl.featurebank import lock as locks
from nncsl.featurebank.files import Disk

IDS, SLOTS, LABELS = torch.arange(40), torch.zeros(40, dtype=torch.int64), torch.arange(40) % 4


def filled(path, codec="fp16"):
    bank = FeatureBank.create(path, dim=8, codec=codec, teacher="a")
    bank.write(IDS, SLOTS, torch.eye(8).repeat(5, 1), labels=LABELS, role="support")
    bank.commit()
    return bank


@pytest.mark.parametrize("residency", ["ram", "disk"])
def test_a_reader_keeps_everything_when_its_generation_is_evicted(tmp_path, residency):
    with filled(tmp_path / "bank") as writer:
        reader = FeatureBank.open(tmp_path / "bank", residency=residency)
        old = writer.generation
        writer.begin_generation("b")
        writer.write(IDS, SLOTS, torch.ones(40, 8))
        writer.commit()
        writer.evict(generation=old)
        assert not list((tmp_path / "bank" / "shards").glob(f"{old:06d}-*"))
        assert torch.equal(reader.labels(IDS, SLOTS), LABELS)
        assert torch.equal(reader.keys("support")[0], IDS) and torch.equal(reader.keys()[1], SLOTS)
        pytest.importorskip("faiss")
        assert reader.index().search(torch.eye(8)[:1], k=1).ids.shape == (1, 1)
        reader.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_the_lock_is_free_after_a_disk_has_failed(tmp_path, monkeypatch, code):
    def failing(*_):
        raise OSError(code, os.strerror(code))

    filled(tmp_path / "bank").close()
    with monkeypatch.context() as broken:  # while the lock itself is being written
        broken.setattr(locks.os, "pwrite", failing)
        FeatureBank.open(tmp_path / "bank", "a").close()
    bank = FeatureBank.open(tmp_path / "bank", "a")
    bank.write(IDS + 100, SLOTS, torch.ones(40, 8))
    with monkeypatch.context() as broken:  # while it is being let go of
        broken.setattr(Disk, "close", failing)
        with pytest.raises(OSError, match=os.strerror(code)), pytest.warns(UserWarning, match="never committed"):
            bank.close()
    with FeatureBank.open(tmp_path / "bank", "a") as again:
        assert len(again) == 40


def test_links_in_a_bank_are_replaced_or_refused(tmp_path):
    path, mine = tmp_path / "bank", tmp_path / "thesis.txt"
    filled(path).close()
    mine.write_text("mine")
    (path / "LOCK").symlink_to(mine)
    (path / "CURRENT.tmp").symlink_to(mine)
    with FeatureBank.open(path, "a") as bank:
        bank.write(IDS + 100, SLOTS, torch.ones(40, 8))
        bank.commit()
    assert mine.read_text() == "mine" and not (path / "CURRENT.tmp").is_symlink()
    os.link(mine, path / "LOCK")
    FeatureBank.open(path, "a").close()
    assert mine.read_text() == "mine"
    (path / "shards").rename(tmp_path / "elsewhere")
    (path / "shards").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CorruptBank, match="shards: is a link"):
        FeatureBank.open(path, "a")
