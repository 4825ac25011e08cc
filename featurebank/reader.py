"""Everything a bank can do for those who only read: gather, look up, search, verify."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .files import Disk
from .manifest import Generation
from .rows import Rows
from .store import Store

if TYPE_CHECKING:
    from .index import FeatureIndex
    from .table import Array


class BankReader:
    """The reading half of FeatureBank: serves the committed rows of one generation."""

    disk = Disk()
    _store: Store
    _rows: Rows
    mode: str

    def read(
        self, ids: Any, slots: Any, *, device: str | torch.device | None = None, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Features [n, dim] of the keys, in the order given, duplicates allowed. KeyError lists the missing keys.

        Decoded on `device` (default: where the features reside) into `dtype`.
        """
        return self._rows.read(ids, slots, device, dtype)

    def fetch(self, ids: Any, slots: Any) -> tuple[Array, ...]:
        """The host's half of `read`: arrays that `decode` takes as tensors of the device where features are wanted.

        Between the two they can travel with other things. With residency 'device' they are no more than row numbers.
        """
        return self._rows.fetch(ids, slots)

    def decode(self, fetched: tuple[Tensor, ...]) -> Tensor:
        """Features [n, dim] float32 from what `fetch` returned, as tensors: of any device, or of that of residence."""
        return self._rows.decode(fetched)

    def labels(self, ids: Any, slots: Any) -> Tensor:
        """Labels [n] int64 of the keys, -1 where none was given. KeyError lists the missing keys."""
        return self._rows.labels(ids, slots)

    def contains(self, ids: Any, slots: Any) -> Tensor:
        """Bool [n]: which keys have a committed feature."""
        return self._rows.contains(ids, slots)

    def keys(self, role: str | None = None) -> tuple[Tensor, Tensor]:
        """All committed (ids [n] int64, slots [n] int64), of one role or of all, in the order they were written."""
        return self._rows.column("ids", role), self._rows.column("slots", role)

    def index(self, kind: str = "flat", *, role: str | None = None, **options: Any) -> FeatureIndex:
        """A FAISS index over the committed rows (of one role): see `featurebank.index.FeatureIndex`. Needs faiss."""
        from .index import FeatureIndex

        return FeatureIndex(self.read, *self.keys(role), self._rows.column("labels", role), self.dim, kind, **options)

    def __len__(self) -> int:
        return self.manifest.rows

    @property
    def nbytes(self) -> int:
        """Bytes of this generation's files: features, keys, labels."""
        return sum(shard.bytes for shard in self.manifest.shards)

    @property
    def row_bytes(self) -> int:
        """Bytes of this generation's rows alone: features as encoded, keys, and what decoding them takes."""
        return self._rows.codec.nbytes(len(self))

    @property
    def manifest(self) -> Generation:
        """What is recorded of the generation served: teacher, task, views, dataset, codec, shards."""
        return self._rows.generation

    @property
    def generation(self) -> int:
        return self.manifest.generation

    @property
    def generations(self) -> tuple[Generation, ...]:
        """What is known of every live generation, the current one first."""
        return self._store.state.generations

    @property
    def dim(self) -> int:
        return self.manifest.dim

    @property
    def codec(self) -> str:
        return self.manifest.codec

    @property
    def path(self) -> Path:
        return self._store.path

    def verify(self) -> bool:
        """Compare every file of every live generation with its checksum: True, or CorruptBank names what is damaged."""
        fresh = Store(self.path, self.disk)
        fresh.consistently(fresh.verify)
        return True

    def __repr__(self) -> str:
        return (
            f"FeatureBank({str(self.path)!r}, generation={self.generation}, rows={len(self)}, dim={self.dim}, "
            f"codec={self.codec!r}, mode={self.mode!r}, residency={self._rows.residency!r})"
        )
