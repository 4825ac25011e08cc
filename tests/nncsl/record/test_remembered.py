"""A run keeps the pixels of its memory, and those alone; a kill at any moment leaves those of its checkpoint."""

import numpy as np
import pytest

from nncsl import engine
from nncsl.data.images import PackedImages
from nncsl.data.sources import Source
from nncsl.errors import DataError
from nncsl.record import checkpoint, remembered
from nncsl.record.state import RunState
from nncsl.replay import Memory
from tests.nncsl.scenes import trained_in_pieces

NONE = np.zeros(0, np.int64)
TINY = ["tasks=2", "epochs=1", "warmup_epochs=0", "unlabeled_batch=128", "memory=20", "bank_views=1"]


def stored(folder):
    return {path.name: path.read_bytes() for path in (folder / "memory").iterdir()}


def at_checkpoint(run):
    state = RunState.unpack(checkpoint.load(run.checkpoint_path)["state"])
    return state, remembered.read(run.folder, state.memory, NONE)


def test_it_holds_what_the_memory_holds(small, make_run):
    run = make_run(small(*TINY, "unlabeled_memory=6"))
    engine.train(run)
    state, found = at_checkpoint(run)
    assert len(state.memory.ids) == 20 and len(state.memory.unlabeled) == 6
    assert set(found.ids) == {*state.memory.ids, *state.memory.unlabeled}
    batch = found.images.gather(np.arange(len(found.ids)))
    assert np.array_equal(batch.pixels, run.source.train.gather(found.ids).pixels)
    for image, label in zip(found.ids, found.labels, strict=True):
        known = state.memory.labels[state.memory.ids == image]
        assert [label] == (known.tolist() or [remembered.HIDDEN])
    assert found.class_names == run.source.class_names and found.dataset == "digits"
    # What the accounting calls memory are these pixels, each image once.
    assert batch.pixels.nbytes <= state.peak_memory["memory"] <= 26 * 64
    assert len(stored(run.folder)) == 1


def test_images_that_a_method_keeps_are_among_them(small, make_run):
    run = make_run(small(*TINY, "method=pseudoer"))
    method, state = engine.train(run)
    found = remembered.read(run.folder, state.memory, method.keeps())
    assert len(method.keeps()) and set(method.keeps()) <= set(found.ids)


def test_stopped_in_every_step_it_is_the_same_file(small, make_run, monkeypatch):
    whole = make_run(small(*TINY), "whole")
    engine.train(whole)
    broken = make_run(small(*TINY), "broken")
    trained_in_pieces(broken, monkeypatch)
    assert stored(broken.folder) == stored(whole.folder)


def test_a_kill_before_the_checkpoint_leaves_the_old_images(small, make_run, monkeypatch):
    """Between the new file and the checkpoint that speaks of it: both are there, the checkpoint finds its own."""
    run, save, saved = make_run(small(*TINY)), checkpoint.save, []

    class Killed(BaseException):
        pass

    def killing(path, state):
        if state["state"]["remembered"] == 2:
            raise Killed
        saved.append(state["state"]["remembered"])
        save(path, state)

    monkeypatch.setattr(checkpoint, "save", killing)
    with pytest.raises(Killed):
        engine.train(run)
    assert set(saved) == {0, 1} and len(stored(run.folder)) == 2
    state, found = at_checkpoint(run)
    assert state.remembered == 1 and set(found.ids) == set(state.memory.ids)
    monkeypatch.undo()
    engine.train(run, checkpoint.load(run.checkpoint_path))
    state, found = at_checkpoint(run)
    assert state.remembered == 2 and set(found.ids) == set(state.memory.ids) and len(stored(run.folder)) == 1


def test_images_of_different_sizes(tmp_path):
    sizes = np.array([[2, 3], [4, 4], [5, 1]], np.int64)
    lengths = sizes.prod(axis=1) * 3
    flat = np.random.default_rng(0).integers(0, 256, lengths.sum(), dtype=np.uint8)
    images = PackedImages(flat, np.cumsum(lengths) - lengths, sizes)
    source = Source("photos", images, np.array([0, 1, 0]), images, np.array([0, 1, 0]), ("a", "ä"))
    memory = Memory(np.array([2, 0]), np.array([0, 0]))
    with remembered.kept(tmp_path, source, memory, NONE):
        pass
    found = remembered.read(tmp_path, memory, NONE)
    assert found.ids.tolist() == [0, 2] and found.class_names == ("a", "ä")
    for image, expected in zip(
        found.images.gather(np.arange(2)).each(), images.gather(np.array([0, 2])).each(), strict=True
    ):
        assert np.array_equal(image, expected)
    assert remembered.read(tmp_path, Memory(np.array([1]), np.array([1])), NONE) is None


def test_a_flipped_bit_is_noticed(small, make_run):
    run = make_run(small(*TINY))
    engine.train(run)
    (path,) = (run.folder / "memory").iterdir()
    content = bytearray(path.read_bytes())
    content[600] ^= 4
    path.write_bytes(content)
    with pytest.raises(DataError, match="damaged"):
        at_checkpoint(run)
