"""A bank's rows as one .npz file, block by block: neither the bank nor the file has to fit into memory."""

import dataclasses
import json
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from nncsl.banks.place import Place, opened
from nncsl.featurebank import FeatureBank
from nncsl.files import written_beside

_ROWS = 8192  # decoded at a time: 4 MB of 128-d features
Array = np.ndarray[Any, Any]


def export(place: Place, target: Path, generation: int | None = None) -> int:
    """Writes ids, slots, roles, features (float32), labels where there are any, and the manifest; returns the rows."""
    with opened(place, generation) as bank, written_beside(target) as beside, zipfile.ZipFile(beside, "w") as archive:
        return _write_all(archive, bank)


def _write_all(archive: zipfile.ZipFile, bank: FeatureBank) -> int:
    keys = bank.keys()
    ids, slots = keys[0].numpy(), keys[1].numpy()
    blocks = [slice(start, start + _ROWS) for start in range(0, len(ids), _ROWS)]
    _write(archive, "ids", ids.dtype, ids.shape, (ids[block] for block in blocks))
    _write(archive, "slots", slots.dtype, slots.shape, (slots[block] for block in blocks))
    names = np.array([shard.role for shard in bank.manifest.shards] or [""])
    _write(archive, "roles", names.dtype, ids.shape, _roles(bank, names))
    labels = bank.labels(ids, slots).numpy()
    if (labels >= 0).any():
        _write(archive, "labels", labels.dtype, labels.shape, (labels[block] for block in blocks))
    features = (bank.read(ids[block], slots[block]).numpy() for block in blocks)
    _write(archive, "features", np.dtype(np.float32), (len(ids), bank.dim), features)
    manifest = np.array(json.dumps(dataclasses.asdict(bank.manifest)))
    _write(archive, "manifest", manifest.dtype, (), [manifest])
    return len(ids)


def _roles(bank: FeatureBank, names: Array) -> Iterator[Array]:
    """Rows come in the order of the shards, and a shard holds one role."""
    for shard, name in zip(bank.manifest.shards, names, strict=False):
        for start in range(0, shard.rows, _ROWS):
            yield np.full(min(_ROWS, shard.rows - start), name, names.dtype)


def _write(
    archive: zipfile.ZipFile, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], blocks: Iterable[Array]
) -> None:
    """One member of the archive: numpy's header, then the blocks. Dated alike, so that equal banks give equal files."""
    member = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
    with archive.open(member, "w", force_zip64=True) as file:
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks:
            file.write(np.ascontiguousarray(block).tobytes())
