"""Image files decoded once, at a fixed short side, into one HDF5 file that is then only memory-mapped.

The file's structure is written first and closed; pixels then go through a memory map into the space that HDF5 has
allocated. So a process killed while decoding can't damage it: a journal beside it counts the finished images, the
next call goes on from there, and only the complete file gets the final name.
"""

import hashlib
import json
import os
import shutil
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from nncsl.data import decoding
from nncsl.data.images import FileBytes, PackedImages
from nncsl.errors import DataError, UserError
from nncsl.files import read_json, write_text
from nncsl.terminal import Screen

_FORMAT = 1
_CHUNK = 256


def default_cache_dir() -> Path:
    """$NNCSL_CACHE, or nncsl's folder in the user's cache."""
    base = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    return Path(os.environ.get("NNCSL_CACHE", base / "nncsl"))


def packed_images(name: str, files: tuple[Path, ...], cache_dir: Path | None, short_side: int) -> PackedImages:
    """The images of ``files``, decoded now if they are not in the cache yet (with a progress bar)."""
    folder = cache_dir or default_cache_dir()
    path = folder / f"{name}-{short_side}px-{_listing_hash(files, short_side)}.h5"
    try:
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            _decode_all(name, files, path, short_side)
        return _open(path)
    except OSError as error:
        raise DataError(
            f"image cache {error.filename or path}: {error.strerror or error}; "
            f"make room or choose another place with --set cache_dir=FOLDER"
        ) from error


def verify(images_path: Path) -> int:
    """Compares every image of a cache file with its checksum; returns how many were compared."""
    images = _open(images_path)
    with h5py.File(images_path, "r") as file:
        expected = file["crc32"][:]
    ends = images.offsets + images.sizes.prod(axis=1) * 3
    for row, (start, end) in enumerate(zip(images.offsets, ends, strict=True)):
        if zlib.crc32(images.flat[start:end].data) != expected[row]:
            raise DataError(f"{images_path} is corrupt at image {row}: delete it, it is decoded again at the next use")
    return len(images)


def _listing_hash(files: tuple[Path, ...], short_side: int) -> str:
    """Changes when a file is added, removed, renamed or written anew."""
    digest = hashlib.sha256(f"{_FORMAT} {short_side}".encode())
    for file in files:
        status = file.stat()
        digest.update(os.fsencode(f"{file.parent.name}/{file.name} {status.st_size} {status.st_mtime_ns}\n"))
    return digest.hexdigest()[:16]


def _decode_all(name: str, files: tuple[Path, ...], path: Path, short_side: int) -> None:
    partial, journal = path.with_suffix(".partial"), path.with_suffix(".journal")
    threads = min(32, os.cpu_count() or 1)
    title = TextColumn("{task.description}", markup=False)
    bar = Progress(title, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=Screen())
    with bar, ThreadPoolExecutor(threads) as pool:
        done = _read_journal(journal) if partial.exists() else 0
        if not done:
            step = bar.add_task(f"{name}: measuring", total=len(files))
            shapes = list(bar.track(pool.map(lambda f: _target_size(f, short_side), files), task_id=step))
            _allocate(partial, np.array(shapes, np.int64))
            _write_journal(journal, 0)
        sizes, offsets, flat, checksums = _open_for_writing(partial)
        step = bar.add_task(f"{name}: decoding", total=len(files), completed=done)
        for start in range(done, len(files), _CHUNK):
            rows = range(start, min(start + _CHUNK, len(files)))
            for row, pixels in zip(
                rows, pool.map(_decode, (files[r] for r in rows), (sizes[r] for r in rows)), strict=True
            ):
                flat[offsets[row] : offsets[row] + pixels.size] = pixels.ravel()
                checksums[row] = zlib.crc32(pixels.tobytes())
            flat.flush()
            checksums.flush()
            _write_journal(journal, rows.stop)
            bar.update(step, completed=rows.stop)
    del flat, checksums  # Windows renames no file that is mapped
    partial.replace(path)
    journal.unlink()


def _target_size(file: Path, short_side: int) -> tuple[int, int]:
    """Height and width after decoding; reads the header only."""
    return decoding.fitted_size(*decoding.measure(file), short_side)


def _decode(file: Path, size: np.ndarray) -> np.ndarray:
    """The image as uint8 [height, width, 3]: resized to cover ``size``, then cut around its middle."""
    return decoding.fitted(decoding.read(file), *(int(side) for side in size))


def _allocate(path: Path, sizes: np.ndarray) -> None:
    """Writes the file's structure, with room for all pixels."""
    lengths = sizes.prod(axis=1) * 3
    needed, free = int(lengths.sum()), shutil.disk_usage(path.parent).free
    if needed > free:
        raise DataError(
            f"{path.parent}: the decoded images need {needed / 1e6:.1f} MB, {free / 1e6:.1f} MB are free; make room, "
            f"choose another place with --set cache_dir=FOLDER or a smaller --set cache_short_side"
        )
    early = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    early.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    early.set_obj_track_times(False)  # the same images give the same bytes
    with h5py.File(path, "w") as file:
        file.attrs["format"] = _FORMAT
        file["sizes"] = sizes
        file["offsets"] = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
        for dataset, length, kind in (
            (b"pixels", needed, h5py.h5t.NATIVE_UINT8),
            (b"crc32", len(sizes), h5py.h5t.NATIVE_UINT32),
        ):
            h5py.h5d.create(file.id, dataset, kind, h5py.h5s.create_simple((length,)), dcpl=early)


def _open_for_writing(path: Path) -> tuple[np.ndarray, np.ndarray, np.memmap, np.memmap]:
    with h5py.File(path, "r") as file:
        sizes, offsets = file["sizes"][:], file["offsets"][:]
        places = [(file[key].id.get_offset(), file[key].shape, file[key].dtype) for key in ("pixels", "crc32")]
    flat, checksums = (np.memmap(path, dtype, "r+", offset, shape) for offset, shape, dtype in places)
    return sizes, offsets, flat, checksums


def _open(path: Path) -> PackedImages:
    try:
        with h5py.File(path, "r") as file:
            pixels, sizes, offsets = file["pixels"], file["sizes"][:], file["offsets"][:]
            flat = FileBytes(path, pixels.id.get_offset())
            flat[pixels.shape[0] - 1 : pixels.shape[0]]  # a truncated file is found here
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise DataError(f"{path} is corrupt ({error}): delete it, it is decoded again at the next use") from error
    return PackedImages(flat, offsets, sizes)


def _read_journal(path: Path) -> int:
    try:
        return int(read_json(path)["done"])
    except (UserError, ValueError, KeyError, TypeError, OverflowError):
        return 0  # nothing that could be trusted: start again


def _write_journal(path: Path, done: int) -> None:
    write_text(path, json.dumps({"done": done}))
