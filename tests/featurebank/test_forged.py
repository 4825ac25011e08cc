"""A bank whose checksums are right and whose contents are not: a forger can write checksums too."""

import hashlib
import json
import os

import h5py
import numpy as np
import pytest
import torch

from nncsl.featurebank import CorruptBank, FeatureBank


@pytest.fixture
def bank(tmp_path):
    with FeatureBank.create(tmp_path / "bank", dim=8, codec="fp16") as made:
        made.write(range(20), [0] * 20, torch.randn(20, 8))
        made.commit()
    return tmp_path / "bank"


def seal(bank, lines):
    body = "".join(f"{line}\n" for line in lines).encode()
    (bank / "CURRENT").write_bytes(body + f"checksum {hashlib.sha256(body).hexdigest()}\n".encode())


def refused(bank, match):
    with pytest.raises(CorruptBank, match=match):
        FeatureBank.open(bank, verify=False)


@pytest.mark.parametrize(
    "lines",
    [
        [f"/dev/zero {'0' * 64}", "next-generation 9"],
        [f"../other.json {'0' * 64}", "next-generation 9"],
        ["next-generation 9"],
        ["one two three", "next-generation 9"],
        [f"MANIFEST-000001-0001.json {'0' * 64}", "next-generation x"],
        ["", ""],
    ],
)
def test_current_names_manifests_of_its_own_directory(bank, lines):
    seal(bank, lines)
    refused(bank, "CURRENT")


@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST"])
@pytest.mark.parametrize("kind", ["pipe", "endless", "huge", "folder"])
def test_only_regular_files_of_a_bounded_size_are_read(bank, name, kind):
    path = next(bank.glob(f"{name}*"))
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40)
    refused(bank, name)


@pytest.mark.parametrize("key", ["generation", "commit", "dim", "codec", "teacher", "dataset", "shards", "version"])
@pytest.mark.parametrize("put", [-1, 10**30, [1], {"a": 1}, "pq0\x1b"])
def test_a_manifest_holds_what_a_bank_writes(bank, key, put):
    name = (bank / "CURRENT").read_text().split()[0]
    manifest = json.loads((bank / name).read_text())
    if key in ("teacher", "dataset") and isinstance(put, str):
        pytest.skip("is what a bank writes")
    (bank / name).write_text(json.dumps(manifest | {key: put}))
    seal(bank, [f"{name} {hashlib.sha256((bank / name).read_bytes()).hexdigest()}", "next-generation 9"])
    with pytest.raises((CorruptBank, RuntimeError)):
        FeatureBank.open(bank, verify=False)


def test_a_shard_is_no_larger_than_its_file(bank):
    path = next((bank / "shards").iterdir())
    with h5py.File(path, "r") as file:
        columns = {name: file[name][()] for name in file}
    with h5py.File(path, "w") as file:
        for name, column in columns.items():
            if name == "ids":
                file.create_dataset(name, shape=(1 << 34,), dtype="<i8", chunks=(1 << 20,), compression="gzip")
            else:
                file.create_dataset(name, data=column)
    refused(bank, "ids is not stored")


def test_a_shard_of_other_features_is_refused(bank):
    path = next((bank / "shards").iterdir())
    with h5py.File(path, "r+") as file:
        rows = len(file["ids"])
        del file["features"]
        file.create_dataset("features", data=np.zeros((rows, 3), np.float16))
    refused(bank, "codec")
