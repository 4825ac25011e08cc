"""Images decoded once, at a fixed short side, into one file that is then only read.

One process decodes, under a lock; others wait for it. Pixels are written by plain writes, so that a full disk is an
error and not a signal. A journal beside the file counts the finished images: the next call of a process that was killed
goes on from there, and only the complete file gets the final name.

The file: a head (magic, number of images, bytes of pixels and of notes, CRC-32 of all but the pixels), the index
(offset, size and CRC-32 of each image), the pixels, and notes: why images could not be read, as JSON. Head, index,
notes and length are checked whenever the file is opened, an image's pixels when they are first read.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import struct
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

import filelock
import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from nncsl.data import decoding
from nncsl.data.decoding import Encoded
from nncsl.data.images import CheckedImages, FileBytes
from nncsl.data.user_files import as_text
from nncsl.errors import DataError, UserError
from nncsl.files import read_json, write_text
from nncsl.terminal import Screen

T = TypeVar("T")
SUFFIX = ".images"
_FORMAT = 2
_MAGIC = b"NNCSLIM2"
_HEAD = struct.Struct("<8sQQQI")
_ROW = np.dtype([("offset", "<i8"), ("size", "<i4", 2), ("crc32", "<u4")])
_CHUNK = 256
_LONGEST_NAME = 80  # of a data set, in the name of its file


class Cache(NamedTuple):
    """The images of a listing: rows of ``images`` are those of ``readable`` [m]; the others have a reason."""

    images: CheckedImages
    readable: np.ndarray
    unreadable: Mapping[int, str]


def default_cache_dir() -> Path:
    """$NNCSL_CACHE, or nncsl's folder in the user's cache."""
    base = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    return Path(os.environ.get("NNCSL_CACHE", base / "nncsl"))


def packed_images(
    name: str, files: Sequence[Encoded], cache_dir: Path | None, short_side: int, max_pixels: int = decoding.MAX_PIXELS
) -> Cache:
    """Return the images, decoded now if they are not in the cache yet (with a progress bar)."""
    folder = cache_dir or default_cache_dir()
    readable_name = re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)[:_LONGEST_NAME]
    path = folder / f"{readable_name}-{short_side}px-{_listing_hash(files, short_side, max_pixels)}{SUFFIX}"
    try:
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            with _alone(path):
                if not path.exists():
                    _decode_all(name, files, path, short_side, max_pixels)
        return _open(path)
    except OSError as error:
        raise DataError(
            f"image cache {error.filename or path}: {error.strerror or error}{_lacking(error, path)}; "
            f"make room or choose another place with --set cache_dir=FOLDER"
        ) from error


def verify(images_path: Path) -> int:
    """Compare every image of a cache file with its checksum; return how many were compared."""
    images = _open(images_path).images
    for row in range(len(images)):
        images.content(row)
    return len(images)


def _listing_hash(files: Sequence[Encoded], short_side: int, max_pixels: int) -> str:
    """Changes when an image is added, removed, renamed or written anew."""
    digest = hashlib.sha256(f"{_FORMAT} {short_side} {max_pixels}".encode())
    for file in files:
        digest.update(file.stamp())
    return digest.hexdigest()[:16]


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep other processes from preparing the same file; the lock of one that dies is free."""
    lock = filelock.FileLock(path.with_suffix(".lock"))
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        print(f"nncsl: waiting for another process, which is preparing {path}", file=sys.stderr, flush=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _decode_all(name: str, files: Sequence[Encoded], path: Path, short_side: int, max_pixels: int) -> None:
    partial, journal = path.with_suffix(".partial"), path.with_suffix(".journal")
    threads = min(32, os.cpu_count() or 1)
    title = TextColumn("{task.description}", markup=False)
    bar = Progress(title, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=Screen())
    with bar, ThreadPoolExecutor(threads) as pool:

        def sized(file: Encoded) -> tuple[int, int] | str:
            return _or_reason(lambda: decoding.fitted_size(*decoding.measure(file, max_pixels), short_side))

        def decoded(file: Encoded, size: np.ndarray) -> np.ndarray | str:
            return _or_reason(lambda: decoding.fitted(decoding.read(file, 3, max_pixels), int(size[0]), int(size[1])))

        done, notes = _read_journal(journal) if partial.exists() else (0, {})
        if not done:
            step = bar.add_task(f"{as_text(name)}: measuring", total=len(files))
            shapes = list(bar.track(pool.map(sized, files), task_id=step))
            notes = {row: shape for row, shape in enumerate(shapes) if isinstance(shape, str)}
            _lay_out(partial, [(0, 0) if isinstance(shape, str) else shape for shape in shapes])
        with partial.open("rb+") as file:
            _, _, pixel_bytes, _, _ = _HEAD.unpack(file.read(_HEAD.size))
            index = _read_index(file, len(files))
            step = bar.add_task(f"{as_text(name)}: decoding", total=len(files), completed=done)
            for start in range(done, len(files), _CHUNK):
                stop = min(start + _CHUNK, len(files))
                rows = [row for row in range(start, stop) if row not in notes]
                found = pool.map(decoded, (files[row] for row in rows), index["size"][rows])
                for row, pixels in zip(rows, found, strict=True):
                    if isinstance(pixels, str):
                        notes[row], index["size"][row] = pixels, 0
                        continue
                    content = pixels.tobytes()
                    index["crc32"][row] = zlib.crc32(content)
                    file.seek(_HEAD.size + index.nbytes + int(index["offset"][row]))
                    file.write(content)
                file.seek(_HEAD.size + start * _ROW.itemsize)
                file.write(index[start:stop].tobytes())
                _sync(file)
                _write_journal(journal, stop, notes)
                bar.update(step, completed=stop)
            _complete(file, index, pixel_bytes, notes)
    partial.replace(path)
    journal.unlink(missing_ok=True)


def _or_reason(make: Callable[[], T]) -> T | str:
    """Return what is made of an image, or why nothing can be."""
    try:
        return make()
    except decoding.UnreadableImage as error:
        return error.reason


def _lay_out(path: Path, shapes: Sequence[tuple[int, int]]) -> None:
    """Write the beginning of a file for images of these heights and widths, where the disk has room for all of it."""
    index = np.zeros(len(shapes), _ROW)
    index["size"] = np.array(shapes).reshape(-1, 2)
    lengths = index["size"].astype(np.int64).prod(axis=1) * 3
    index["offset"] = np.cumsum(lengths) - lengths
    needed, free = _HEAD.size + index.nbytes + int(lengths.sum()), shutil.disk_usage(path.parent).free
    if needed > free:
        raise DataError(
            f"{path.parent}: the decoded images need {needed / 1e6:.1f} MB, {free / 1e6:.1f} MB are free; make room, "
            f"choose another place with --set cache_dir=FOLDER or a smaller --set cache_short_side"
        )
    path.unlink(missing_ok=True)
    with path.open("xb") as file:
        file.write(_HEAD.pack(b"", len(index), int(lengths.sum()), 0, 0) + index.tobytes())


def _complete(file: BinaryIO, index: np.ndarray, pixel_bytes: int, notes: Mapping[int, str]) -> None:
    """Add the notes, then the head that makes the file a whole one."""
    text = json.dumps(notes).encode()
    file.seek(_HEAD.size + index.nbytes + pixel_bytes)
    file.write(text)
    file.truncate()
    checksum = _checksum(len(index), pixel_bytes, index.tobytes() + text)
    file.seek(0)
    file.write(_HEAD.pack(_MAGIC, len(index), pixel_bytes, len(text), checksum))
    _sync(file)


def _open(path: Path) -> Cache:
    try:
        with path.open("rb") as file:
            magic, count, pixel_bytes, text_bytes, checksum = _HEAD.unpack(file.read(_HEAD.size))
            expected = _HEAD.size + count * _ROW.itemsize + pixel_bytes + text_bytes
            if magic != _MAGIC or path.stat().st_size != expected:
                raise ValueError(f"{path.stat().st_size} bytes, expected {expected}")
            index = _read_index(file, count)
            file.seek(pixel_bytes, os.SEEK_CUR)
            text = file.read(text_bytes)
        if _checksum(count, pixel_bytes, index.tobytes() + text) != checksum:
            raise ValueError("its index has another checksum")
        notes = {int(row): str(reason) for row, reason in json.loads(text).items()}
    except (OSError, ValueError, OverflowError, MemoryError, struct.error) as error:
        raise DataError(f"{path} is corrupt ({error}): delete it, it is decoded again at the next use") from error
    readable = np.setdiff1d(np.arange(count), list(notes)).astype(np.int64)
    rows = index[readable]
    flat = FileBytes(path, _HEAD.size + index.nbytes)
    sizes = rows["size"].astype(np.int64)
    images = CheckedImages(flat, rows["offset"].astype(np.int64), sizes, checksums=rows["crc32"].copy(), place=path)
    return Cache(images, readable, notes)


def _read_index(file: BinaryIO, count: int) -> np.ndarray:
    """The rows behind the head, which can be changed."""
    return np.frombuffer(bytearray(file.read(count * _ROW.itemsize)), _ROW, count)


def _checksum(count: int, pixel_bytes: int, rest: bytes) -> int:
    return zlib.crc32(rest, zlib.crc32(struct.pack("<QQ", count, pixel_bytes)))


def _lacking(error: OSError, path: Path) -> str:
    """How much a full disk would have to hold."""
    partial = path.with_suffix(".partial")
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or not partial.exists():
        return ""
    with partial.open("rb") as file:
        _, count, pixel_bytes, _, _ = _HEAD.unpack(file.read(_HEAD.size).ljust(_HEAD.size, b"\0"))
    needed, there = _HEAD.size + count * _ROW.itemsize + pixel_bytes, partial.stat().st_size
    return f" ({needed / 1e6:.1f} MB are needed, {there / 1e6:.1f} MB are written)"


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _read_journal(path: Path) -> tuple[int, dict[int, str]]:
    """How many images are done, and which could not be read."""
    try:
        journal = read_json(path)
        return int(journal["done"]), {int(row): str(reason) for row, reason in journal["unreadable"].items()}
    except (UserError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return 0, {}  # nothing that could be trusted: start again


def _write_journal(path: Path, done: int, notes: Mapping[int, str]) -> None:
    write_text(path, json.dumps({"done": done, "unreadable": notes}))
