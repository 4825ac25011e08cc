"""(id, slot) -> row, for whole batches of keys at once.

Image ids and slots are usually dense, so the common case is one table lookup; sparse keys fall back to a binary search.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_largest = np.maximum.reduce
_WIDEST_ID_RANGE = 1 << 40  # beyond it ids are replaced by their rank, so that id and slot still pack into 63 bits


class KeyIndex:
    """Finds rows by key. Ids are any int64, slots are in [0, 2**31)."""

    def __init__(self, ids: Ints, slots: Ints):
        """ids [n], slots [n]: the key of row i is (ids[i], slots[i]). See `duplicates` before relying on uniqueness."""
        self.rows = n = len(ids)
        self.duplicates: Ints = np.empty(0, np.int64)  # rows whose key occurs in an earlier or later row as well
        self._unique_ids: Ints | None = None
        if n == 0:
            return
        self._first_id = ids.min()
        self._slots = int(slots.max()) + 1
        self._ids = int(ids.max()) - int(self._first_id) + 1
        if max(self._ids, self._slots) > _WIDEST_ID_RANGE or self._ids * self._slots >= 1 << 62:
            self._unique_ids = np.unique(ids)
            self._ids = len(self._unique_ids)
        packed, _ = self._pack(ids, slots)
        size = self._ids * self._slots
        self._table: NDArray[np.int32] | None = None
        row_numbers = np.arange(n, dtype=np.int32)
        if size <= max(4 * n, 1024):
            self._table = np.full(size, -1, np.int32)
            self._table[packed] = row_numbers
            self.duplicates = np.flatnonzero(self._table[packed] != row_numbers)
        else:
            order = np.argsort(packed, kind="stable")
            self._sorted, self._order = packed[order], order.astype(np.int32)
            self.duplicates = np.sort(order[1:][self._sorted[1:] == self._sorted[:-1]])

    def find(self, ids: Ints, slots: Ints) -> NDArray[np.int32]:
        """Rows [n] of the keys, -1 where there is none."""
        if self.rows == 0 or len(ids) == 0:
            return np.full(len(ids), -1, np.int32)
        packed, outside = self._pack(ids, slots)
        if self._table is not None:
            rows = self._table.take(packed)
        else:
            at = np.minimum(np.searchsorted(self._sorted, packed), self.rows - 1)
            rows = np.where(self._sorted[at] == packed, self._order[at], np.int32(-1))
        if outside is not None:
            rows[outside] = -1
        return rows

    def _pack(self, ids: Ints, slots: Ints) -> tuple[Ints, NDArray[np.bool_] | None]:
        """One number per key, and a mask of the keys that can't be here (None: all are in range, as usual)."""
        if self._unique_ids is not None:
            place = np.minimum(np.searchsorted(self._unique_ids, ids), self._ids - 1)
            outside = (self._unique_ids[place] != ids) | (slots < 0) | (slots >= self._slots)
            return place * self._slots + np.where(outside, 0, slots), outside if outside.any() else None
        # A negative number seen as unsigned is out of range as well, so one comparison checks both ends. The reduction
        # is called directly because this runs at every training step and .max() takes three times as long.
        place = ids - self._first_id if self._first_id else ids
        if _largest(place.view(np.uint64)) < self._ids and _largest(slots.view(np.uint64)) < self._slots:
            packed = place * self._slots
            packed += slots
            return packed, None
        outside = (place.view(np.uint64) >= self._ids) | (slots.view(np.uint64) >= self._slots)
        return np.where(outside, 0, place * self._slots + slots), outside


class GrowingKeys:
    """The keys of rows that are written but not yet committed.

    Held as a few indexes, each at least twice as long as the next one, so that adding many small batches stays cheap.
    """

    def __init__(self) -> None:
        self._parts: list[tuple[Ints, Ints, KeyIndex]] = []

    def add(self, ids: Ints, slots: Ints, index: KeyIndex) -> None:
        self._parts.append((ids, slots, index))
        while len(self._parts) > 1 and len(self._parts[-2][0]) < 2 * len(self._parts[-1][0]):
            (first_ids, first_slots, _), (last_ids, last_slots, _) = self._parts[-2:]
            ids, slots = np.concatenate([first_ids, last_ids]), np.concatenate([first_slots, last_slots])
            self._parts[-2:] = [(ids, slots, KeyIndex(ids, slots))]

    def holds(self, ids: Ints, slots: Ints) -> NDArray[np.bool_]:
        """Bool [n]."""
        found = np.zeros(len(ids), bool)
        for _, _, index in self._parts:
            found |= index.find(ids, slots) >= 0
        return found
