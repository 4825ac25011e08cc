"""Data sets of Hugging Face's `datasets` on disk, arrow or parquet, read by pyarrow alone."""

import io
import json
import re
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from nncsl.data.listing import NO_CLASS, Found, Listing, split_by_ratio
from nncsl.data.user_files import as_text, file_times
from nncsl.errors import DataError
from nncsl.files import open_regular

_SPLITS = {
    "train": ("train", "training"),
    "test": ("test", "testing", "validation", "valid", "val", "dev"),  # the first that is there
    "unlabeled": ("unlabeled", "unlabelled", "unsupervised"),
}
_IMAGE_COLUMNS = ("image", "img", "picture", "jpg", "png")
_LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "target", "cls")


def find(path: Path, test_fraction: float) -> Found:
    """Return the images of a file or of all files below a folder, by split; one without a test split is divided."""
    try:
        shards = _shards(path)
        parts = {split: _listing(path, found) for split, found in shards.items() if found}
    except ImportError as error:
        raise DataError(f"hf:{as_text(path)} needs pyarrow: pip install 'nncsl[hf]' ({error})") from error
    except (OSError, ValueError, TypeError) as error:  # pyarrow's own errors are ValueErrors
        raise DataError(f"{as_text(path)} can't be read as a data set of arrow or parquet files ({error})") from error
    train = parts.get("train")
    if train is None:
        raise DataError(f"{as_text(path)} has no training split; expected train in the names of its files or folders")
    if not train.class_names:
        raise DataError(f"{as_text(path)}: no column has labels; expected one of {', '.join(_LABEL_COLUMNS)}")
    test = parts.get("test")
    if test is None:
        train, test = split_by_ratio(train, test_fraction)
    elif test.class_names != train.class_names:
        raise DataError(f"{as_text(path)}: training and test split have different classes")
    else:
        test = test.part(test.labels != NO_CLASS)
    more = parts["unlabeled"].images if "unlabeled" in parts else ()
    return Found(train.plus(more), test)


class Row(NamedTuple):
    """An image in a row of a file."""

    shard: "Shard"
    row: int

    def __str__(self) -> str:
        return f"{as_text(self.shard.path)}, row {self.row},"

    def open(self) -> BinaryIO:
        value = self.shard.value(self.row)
        content, place = (value.get("bytes"), value.get("path")) if isinstance(value, Mapping) else (value, None)
        if content is not None:
            return io.BytesIO(content)
        if place is None:
            raise OSError("the row has no image")
        return open_regular(self.shard.path.parent / place)

    def stamp(self) -> bytes:
        return self.shard.stamp + str(self.row).encode()


class Shard:
    """One file of rows; those of a parquet file are read in groups, those of an arrow file where they lie."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stamp = path.name.encode(errors="surrogateescape") + file_times(path)
        self._lock = threading.Lock()
        self._group = lru_cache(maxsize=2)(self._read_group)  # rows are asked for in order

    @cached_property
    def _table(self) -> Any:
        """The arrow file, mapped; as a stream or as a file with a footer, both are in use."""
        import pyarrow as pa

        source = pa.memory_map(str(self.path))
        try:
            return pa.ipc.open_stream(source).read_all()
        except pa.ArrowInvalid:
            return pa.ipc.open_file(source).read_all()

    @cached_property
    def _parquet(self) -> Any:
        import pyarrow.parquet

        return pyarrow.parquet.ParquetFile(self.path)

    @property
    def schema(self) -> Any:
        return self._parquet.schema_arrow if self._is_parquet else self._table.schema

    @cached_property
    def image_column(self) -> str:
        """The column that `datasets` marks as images, or one with a usual name."""
        features = _features(self.schema)
        marked = [name for name, feature in features.items() if _type(feature) == "Image"]
        return _choice(self.path, "images", marked or self.schema.names, _IMAGE_COLUMNS)

    def labels(self, names: Sequence[str]) -> list[Any] | None:
        """Return the labels of all rows, as they stand there, or None where there is no such column."""
        column = next((name for name in names if name in self.schema.names), None)
        if column is None:
            return None
        read = self._parquet.read(columns=[column]) if self._is_parquet else self._table
        return read.column(column).to_pylist()

    def __len__(self) -> int:
        return self._parquet.metadata.num_rows if self._is_parquet else self._table.num_rows

    def value(self, row: int) -> Any:
        """Return what the image column has in a row: bytes, or bytes and path."""
        with self._lock:
            if not self._is_parquet:
                return self._table.column(self.image_column)[row].as_py()
            group = int(np.searchsorted(self._ends, row, side="right"))
            return self._group(group)[row - (int(self._ends[group - 1]) if group else 0)].as_py()

    @property
    def _is_parquet(self) -> bool:
        return self.path.suffix == ".parquet"

    @cached_property
    def _ends(self) -> np.ndarray:
        groups = range(self._parquet.metadata.num_row_groups)
        return np.cumsum([self._parquet.metadata.row_group(group).num_rows for group in groups])

    def _read_group(self, group: int) -> Any:
        return self._parquet.read_row_group(group, columns=[self.image_column]).column(0)


def _shards(path: Path) -> dict[str, list[Shard]]:
    """The files by split: its name stands in that of a file or its folder; without any they are all to train."""
    if not path.exists():
        raise DataError(
            f"{as_text(path)} does not exist; expected a folder with arrow or parquet files, or one of them"
        )
    files = sorted(p for p in path.rglob("*") if p.suffix in (".arrow", ".parquet")) if path.is_dir() else [path]
    files = [file for file in files if file.is_file() and not file.name.startswith("cache-")]
    if not files:
        raise DataError(
            f"{as_text(path)} has no .arrow or .parquet files; expected what save_to_disk or the Hub writes"
        )
    if files == [path]:
        return {"train": [Shard(path)]}
    inside = {file: "/".join(file.relative_to(path).with_suffix("").parts[-2:]) for file in files}
    words = {file: set(re.split(r"[^a-z]+", name.lower())) for file, name in inside.items()}
    found: dict[str, list[Shard]] = {}
    for split, spellings in _SPLITS.items():
        chosen = next((name for name in spellings if any(name in said for said in words.values())), None)
        found[split] = [Shard(file) for file in files if chosen in words[file]]
    return found if any(found.values()) else {"train": [Shard(file) for file in files]}


def _listing(path: Path, shards: Sequence[Shard]) -> Listing:
    features = _features(shards[0].schema)
    marked = [name for name, feature in features.items() if _type(feature) == "ClassLabel"]
    usual = [name for name in _LABEL_COLUMNS if not marked or name in marked]
    values: list[Any] = []
    for shard in shards:
        found = shard.labels([*usual, *marked])
        values += [None] * len(shard) if found is None else found
    column = next((name for name in (*usual, *marked) if name in features), "")
    names = features.get(column, {}).get("names") if marked else None
    images = tuple(Row(shard, row) for shard in shards for row in range(len(shard)))
    return _numbered(path, images, values, names)


def _numbered(path: Path, images: tuple[Row, ...], values: Sequence[Any], names: Sequence[str] | None) -> Listing:
    """Images with labels as numbers of classes; a missing or negative one is none."""
    missing = [value is None or (isinstance(value, int) and value < 0) for value in values]
    if names is None:
        distinct = sorted({value for value, none in zip(values, missing, strict=True) if not none})
        place = {value: number for number, value in enumerate(distinct)}
        names = [str(value) for value in distinct]
    else:
        place = {number: number for number in range(len(names))}
    strange = [value for value, none in zip(values, missing, strict=True) if not none and value not in place]
    if strange:
        raise DataError(f"{as_text(path)}: label {strange[0]!r} is none of its {len(names)} classes")
    labels = [NO_CLASS if none else place[value] for value, none in zip(values, missing, strict=True)]
    return Listing(images, np.array(labels, np.int64), tuple(map(str, names)))


def _features(schema: Any) -> dict[str, Any]:
    """What `datasets` wrote of the columns into the file, or nothing."""
    try:
        found = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _type(feature: Any) -> Any:
    return feature.get("_type") if isinstance(feature, Mapping) else None


def _choice(path: Path, what: str, names: Sequence[str], usual: Sequence[str]) -> str:
    found = next((name for name in usual if name in names), names[0] if len(names) == 1 else None)
    if found is None:
        raise DataError(
            f"{as_text(path)}: which column has the {what}? Found {', '.join(names)}; expected e.g. {usual[0]}"
        )
    return found
