"""Small files that would become gigabytes, and files that don't belong to a run."""

import io
import zipfile

import numpy as np
import pytest
import torch

from nncsl.errors import UserError
from nncsl.record import archives, checkpoint, snapshots


def header(shape, dtype="|u1"):
    written = io.BytesIO()
    np.lib.format.write_array_header_1_0(written, {"descr": dtype, "fortran_order": False, "shape": shape})
    return written.getvalue()


def test_arrays_come_back(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(6).reshape(2, 3), names=np.array(["a", "b"]), empty=np.zeros((0, 4)))
    found = archives.read_arrays(tmp_path / "a.npz")
    assert found["x"].tolist() == [[0, 1, 2], [3, 4, 5]] and found["names"].tolist() == ["a", "b"]
    assert list(archives.read_arrays(tmp_path / "a.npz", ("names",))) == ["names"]


@pytest.mark.parametrize("kind", ["compressed", "promise", "negative", "objects", "cut", "text", "absent"])
def test_what_no_run_wrote_is_refused_unread(tmp_path, kind):
    path = tmp_path / "a.npz"
    packing = zipfile.ZIP_DEFLATED if kind == "compressed" else zipfile.ZIP_STORED
    content = {
        "compressed": header((1 << 24,)) + bytes(1 << 24),
        "promise": header((1 << 40,), "<f8") + bytes(64),
        "negative": header((-1,), "<f8"),
        "objects": header((1,), "|O") + bytes(64),
    }.get(kind, header((4,)) + bytes(4))
    with zipfile.ZipFile(path, "w", packing) as archive:
        archive.writestr("y.npy" if kind == "absent" else "x.npy", content)
    if kind == "cut":
        path.write_bytes(path.read_bytes()[:-30])
    if kind == "text":
        path.write_text("text")
    with pytest.raises(UserError, match=r"a\.npz"):
        archives.read_arrays(path, ("x",))


def test_a_checkpoint_is_bounded(tmp_path):
    path = tmp_path / "checkpoint" / "state.pt"
    checkpoint.save(path, {"x": torch.zeros(4)})
    assert checkpoint.load(path)["x"].tolist() == [0, 0, 0, 0]
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(UserError, match="compressed"):
        checkpoint.load(path)
    nested = [0]
    for _ in range(40):
        nested = [nested, nested]
    torch.save({"format": checkpoint.FORMAT, "config": nested}, path)
    with pytest.raises(UserError, match="more values"):
        checkpoint.load(path)


def test_what_a_checkpoint_lacks_is_one_line(tmp_path):
    with (
        pytest.raises(checkpoint.CheckpointError, match=r"state\.pt is damaged.*KeyError"),
        checkpoint.understood(tmp_path / "state.pt"),
    ):
        raise KeyError("method")


@pytest.mark.parametrize(
    "change",
    [
        {"labels": np.array([0, 1, 7])},
        {"labels": np.zeros((3, 1), np.int64)},
        {"projections": np.zeros((2, 4), np.float16)},
        {"confusion": np.zeros((3, 2), np.int64)},
        {"confusion": np.full((2, 2), -1)},
        {"class_names": np.array(["a", "b", "c"])},
        {"samples of class 9": np.zeros((1, 2, 2, 3), np.uint8)},
        {"samples of class x": np.zeros((1, 2, 2, 3), np.uint8)},
    ],
)
def test_a_snapshot_whose_parts_do_not_fit_is_refused(tmp_path, change):
    right = {
        "projections": np.zeros((3, 4), np.float16),
        "labels": np.array([0, 1, 1]),
        "confusion": np.eye(2, dtype=np.int64),
        "class_names": np.array(["a", "b"]),
    }
    (tmp_path / "snapshots").mkdir()
    np.savez(tmp_path / "snapshots" / "task-1.npz", **right)
    assert snapshots.read_snapshot(tmp_path, 0).class_names == ("a", "b")
    np.savez(tmp_path / "snapshots" / "task-1.npz", **(right | change))
    with pytest.raises(UserError, match=r"task-1\.npz is damaged"):
        snapshots.read_snapshot(tmp_path, 0)
