"""What has been written since the last commit: shards under construction, and their keys."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
from torch import Tensor, cat, from_numpy

from .checks import listed
from .codecs import TRAINING_ROWS, Codec, ProductQuantizer, agreement
from .keys import GrowingKeys, Ints, KeyIndex
from .manifest import Generation, ShardEntry
from .shard import ShardWriter
from .store import Store

log = logging.getLogger("featurebank")
_Batch = tuple[Ints, Ints, Ints | None, Tensor, str]


class Pending:
    """Rows on their way into `target`, the generation as it will be once committed."""

    def __init__(self, store: Store, target: Generation, codec: Codec):
        self.target, self.rows = target, 0
        self._store, self._codec = store, codec
        self._keys = GrowingKeys()
        self._writers: dict[str, ShardWriter] = {}
        self._untrained: list[_Batch] = []  # rows that wait for enough company to train a quantizer on

    def add(
        self, ids: Ints, slots: Ints, labels: Ints | None, features: Tensor, role: str, known: KeyIndex | None
    ) -> None:
        """All arrays checked. `known`: the committed keys of the target, if any. A key may be written only once."""
        if len(ids) == 0:
            return
        ids, slots = ids.copy(), slots.copy()  # they are kept, and the caller may reuse its arrays
        index = KeyIndex(ids, slots)
        if len(index.duplicates):
            again = listed(ids[index.duplicates], slots[index.duplicates])
            raise ValueError(f"ids, slots: expected distinct keys, got these (id, slot) more than once: {again}")
        present = self._keys.holds(ids, slots)
        if known is not None:
            present |= known.find(ids, slots) >= 0
        if present.any():
            raise ValueError(
                f"ids, slots: expected keys that generation {self.target.generation} does not hold yet, got "
                f"{listed(ids[present], slots[present])}; begin_generation() for another teacher's features, or "
                f"evict(role=...) first"
            )
        if isinstance(self._codec, ProductQuantizer) and self._codec.codebooks is None:
            kept = None if labels is None else labels.copy()
            self._untrained.append((ids, slots, kept, features.clone(), role))
            if sum(len(batch[0]) for batch in self._untrained) >= TRAINING_ROWS:
                try:
                    self._train_and_append()
                except BaseException:
                    self._untrained.pop()  # this batch: whoever wrote it is told that nothing was written
                    raise
        else:
            self._append(ids, slots, labels, features, role)
        self._keys.add(ids, slots, index)
        self.rows += len(ids)

    def _append(self, ids: Ints, slots: Ints, labels: Ints | None, features: Tensor, role: str) -> None:
        if role not in self._writers:
            path = self._store.shards / self.target.shard_name(role)
            self._writers[role] = ShardWriter(self._store.disk, path, self._codec)
        self._writers[role].append(ids, slots, labels, features)

    def _train_and_append(self) -> None:
        if self._untrained and isinstance(self._codec, ProductQuantizer) and self._codec.codebooks is None:
            self._train(self._codec)
        while self._untrained:
            self._append(*self._untrained[0])
            del self._untrained[0]

    def _train(self, codec: ProductQuantizer) -> None:
        rows = cat([features for *_, features, _ in self._untrained])
        codec.train(rows)
        sample = rows[np.linspace(0, len(rows) - 1, min(len(rows), 2000)).astype(np.int64)]
        agrees = agreement(sample, codec.decode(from_numpy(codec.encode(sample).values), None))
        log.warning("codec %s: nearest neighbors agree with the unquantized ones in %.1f%%", codec.name, 100 * agrees)
        self.target = replace(self.target, agreement=round(agrees, 4))

    def seal(self) -> Generation:
        """Complete all shards and return the generation that lists them."""
        self._train_and_append()
        entries = [
            ShardEntry(writer.path.name, role, *writer.seal())
            for role, writer in sorted(self._writers.items())
            if writer.rows
        ]
        return replace(self.target, shards=(*self.target.shards, *entries))

    def discard(self) -> None:
        for writer in self._writers.values():
            writer.discard()
        self._writers, self._untrained, self.rows = {}, [], 0
