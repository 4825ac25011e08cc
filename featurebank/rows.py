"""The committed rows of one generation as a reader sees them: keys, features, labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import checks
from .codecs import make_codec
from .errors import CorruptBank
from .keys import Ints, KeyIndex
from .manifest import REMEDY, Generation
from .shard import COLUMNS, NO_LABEL, OpenShard
from .store import Store
from .table import FeatureTable

RESIDENCIES = ("ram", "disk", "device")


class Rows:
    """Loaded or opened when made, so that a reader is safe from later evictions; `lazy` loads with the first read."""

    def __init__(
        self, store: Store, generation: Generation, residency: str, device: torch.device | None, lazy: bool = False
    ):
        self.generation, self.residency, self.device, self.closed = generation, residency, device, False
        self._shards = [(shard, store.shard_path(shard)) for shard in generation.shards]
        self._open: list[OpenShard] = []
        self._table: FeatureTable | None = None
        self._labels: Ints | None = None
        try:
            self._open = [OpenShard(path) for _, path in self._shards]
            self.codec = make_codec(generation.codec, generation.dim)
            self._load_codebooks()
            ids, slots = self._column("ids"), self._column("slots")
            if not len(ids) == len(slots) == generation.rows:
                raise ValueError(f"the manifest counts {generation.rows} rows, the shards have {len(ids)}")
            self.index = KeyIndex(ids, slots)
            if not lazy:
                self._features()
        except FileNotFoundError:
            raise  # perhaps only evicted meanwhile: for the caller to find out
        except (OSError, KeyError, ValueError, TypeError, RuntimeError, MemoryError) as error:
            names = ", ".join(str(path) for _, path in self._shards)
            raise CorruptBank(
                f"{names}: can't be read ({error}); open with verify=True to see which; {REMEDY}"
            ) from error

    def read(
        self, ids: Any, slots: Any, device: str | torch.device | None = None, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        rows = self._rows(ids, slots)
        return self._features().gather(rows, None if device is None else torch.device(device), dtype)

    def fetch(self, ids: Any, slots: Any) -> tuple[np.ndarray[Any, Any], ...]:
        return self._features().fetch(self._rows(ids, slots))

    def decode(self, fetched: tuple[Tensor, ...]) -> Tensor:
        self.check_open()
        return self._features().decode(fetched)

    def labels(self, ids: Any, slots: Any) -> Tensor:
        rows = self._rows(ids, slots)
        if self._labels is None:
            self._labels = self._column("labels")
        return torch.from_numpy(self._labels.take(rows))

    def contains(self, ids: Any, slots: Any) -> Tensor:
        self.check_open()
        id_numbers = checks.integers("ids", ids)
        return torch.from_numpy(self.index.find(id_numbers, checks.integers("slots", slots, len(id_numbers))) >= 0)

    def column(self, name: str, role: str | None = None) -> Tensor:
        """ids, slots or labels [rows] int64 of one role or of all."""
        self.check_open()
        return torch.from_numpy(self._column(name, None if role is None else checks.known_role(role)))

    def close(self) -> None:
        self.closed, self._table = True, None
        for shard in self._open:
            shard.close()

    def check_open(self) -> None:
        if self.closed:
            raise ValueError("the bank is closed; FeatureBank.open() it again")

    def _rows(self, ids: Any, slots: Any) -> np.ndarray[Any, Any]:
        self.check_open()
        id_numbers = checks.integers("ids", ids)
        slot_numbers = checks.integers("slots", slots, len(id_numbers))
        rows = self.index.find(id_numbers, slot_numbers)
        if len(rows) and np.minimum.reduce(rows) < 0:
            missing = rows < 0
            raise KeyError(
                f"generation {self.generation.generation} has no feature for {int(missing.sum())} of {len(rows)} "
                f"(id, slot): {checks.listed(id_numbers[missing], slot_numbers[missing])}"
            )
        return rows

    def _features(self) -> FeatureTable:
        if self._table is None:
            self._table = FeatureTable([path for _, path in self._shards], self.codec, self.residency, self.device)
        return self._table

    def _load_codebooks(self) -> None:
        if self._open and (codebooks := self._open[0].column("codebooks")) is not None:
            self.codec.codebooks = torch.from_numpy(codebooks)

    def _column(self, name: str, role: str | None = None) -> Ints:
        parts = [np.empty(0, COLUMNS[name])]
        for (shard, _), opened in zip(self._shards, self._open, strict=True):
            if role in (None, shard.role):
                stored = opened.column(name)
                parts.append(np.full(shard.rows, NO_LABEL) if stored is None else stored)
        return np.concatenate(parts).astype(np.int64)


def check_residency(residency: str, device: str | torch.device | None) -> torch.device | None:
    """The device to reside on, None unless residency is 'device'."""
    if residency not in RESIDENCIES:
        raise ValueError(f"residency: expected one of {RESIDENCIES}, got {residency!r}")
    if residency != "device":
        if device is not None:
            raise ValueError(
                f"device: expected None with residency={residency!r} (read(..., device=) decodes there), got {device!r}"
            )
        return None
    return torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
