"""FeatureBank: vectors on disk under the key (id, slot), durable once committed and quick to gather.

It knows nothing of models or losses. Typical life: create, write in batches, commit, read at every step; for the
features of another teacher begin_generation, write, commit, and evict the older one when nothing refers to it any more.
"""

from __future__ import annotations

import json
import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from . import checks
from .codecs import make_codec
from .manifest import CURRENT, Generation, next_generation_by_files
from .pending import Pending
from .reader import BankReader
from .rows import Rows, check_residency
from .store import Store


class FeatureBank(BankReader):
    """Made by `create` and `open`, never directly. A context manager; leaving it drops what is not committed."""

    def __init__(self, store: Store, mode: str, rows: Rows):
        self._store, self.mode, self._rows = store, mode, rows
        self._pid = os.getpid()
        self._pending: Pending | None = None

    @classmethod
    def create(
        cls,
        path: str | Path,
        dim: int = 128,
        codec: str = "fp16",
        teacher: str | None = None,
        overwrite: bool = False,
        *,
        task: Any = None,
        views: Any = None,
        dataset: str | None = None,
        normalized: bool | None = None,
        residency: str = "ram",
        device: str | torch.device | None = None,
    ) -> FeatureBank:
        """A new, empty bank in the directory `path`, durable at once and open for writing (mode 'a').

        `teacher`, `views` and `dataset` are fingerprints (`task` and `views` may be any JSON value): whoever opens the
        bank can demand them. With `overwrite` an existing bank is replaced atomically.
        """
        if not isinstance(dim, int) or dim < 1:
            raise ValueError(f"dim: expected a positive int, got {dim!r}")
        make_codec(codec, dim)
        where = check_residency(residency, device)
        path = Path(path)
        store = Store(path, cls.disk)
        store.check_free(overwrite)
        store.create_directories()
        store.acquire()
        try:
            store.check_free(overwrite)  # again, now that nobody else can make one
            number = next_generation_by_files(path)
            first = Generation(number, 0, dim, codec, normalized, teacher, _json(task), _json(views), dataset)
            store.commit((first,), number + 1)
            return cls(store, "a", Rows(store, first, residency, where))
        except BaseException:
            store.release()
            raise

    @classmethod
    def open(
        cls,
        path: str | Path,
        mode: str = "r",
        *,
        generation: int | None = None,
        teacher: str | None = None,
        views: Any = None,
        dataset: str | None = None,
        residency: str = "ram",
        device: str | torch.device | None = None,
        verify: bool = True,
    ) -> FeatureBank:
        """Open the bank in `path` for reading ('r', any number of processes) or for writing as well ('a', one process).

        Serves the current generation, or the one numbered `generation`. A `teacher`, `views` or `dataset` that is
        given must be the one recorded. `residency`: features in 'ram', left on 'disk', or on a 'device'. `verify`
        compares every file with its checksum first (1.5 GB/s).
        """
        if mode not in ("r", "a"):
            raise ValueError(f"mode: expected 'r' or 'a', got {mode!r}")
        where = check_residency(residency, device)
        path = Path(path)
        if not (path / CURRENT).exists():
            raise FileNotFoundError(f"{path} holds no committed bank; FeatureBank.create({str(path)!r}, ...) makes one")
        store = Store(path, cls.disk)
        expected = {"teacher": teacher, "views": _json(views), "dataset": dataset}
        if mode == "a":
            store.create_directories()
            store.acquire()
        try:

            def serve() -> FeatureBank:
                served = store.demanded(generation, expected)
                if verify:
                    store.verify()
                return cls(store, mode, Rows(store, served, residency, where))

            bank = store.consistently(serve)
            if mode == "a":
                store.clean()
            return bank
        except BaseException:
            store.release()
            raise

    def write(self, ids: Any, slots: Any, features: Any, labels: Any = None, role: str = "unlabeled") -> None:
        """Add rows: ids [n] int64, slots [n] in [0, 2**31), features [n, dim], labels [n] or None (-1: no label).

        Lists, numpy arrays and tensors of any device and float type are taken. Nobody sees the rows before `commit`.
        On a ValueError (shape, type, NaN, a key that exists) or OSError (disk full) nothing is written.
        """
        self._check_writable()
        checks.known_role(role)
        id_numbers = checks.integers("ids", ids)
        slot_numbers = checks.slot_numbers(slots, len(id_numbers))
        label_numbers = checks.label_numbers(labels, len(id_numbers))
        dim = self.dim if self._pending is None else self._pending.target.dim
        rows = checks.feature_rows(features, len(id_numbers), dim, self._rows.codec.largest, self.codec)
        pending = self._pending or self._begin(replace(self.manifest, commit=self.manifest.commit + 1))
        known = self._rows.index if pending.target.generation == self.generation else None
        pending.add(id_numbers, slot_numbers, label_numbers, rows, role, known)

    def begin_generation(
        self,
        teacher: str | None = None,
        *,
        task: Any = None,
        views: Any = None,
        dataset: str | None = None,
        dim: int | None = None,
        normalized: bool | None = None,
    ) -> int:
        """From here on `write` fills a new generation, whose number is returned; None: rows as in the old one.

        `read` keeps serving the old one until `commit`, which makes the new one current. The old one stays on disk
        until it is evicted (unless it is empty).
        """
        self._check_writable()
        self._check_settled()
        number = self._store.state.next_generation
        old = self.manifest
        dim, normalized = dim or old.dim, old.normalized if normalized is None else normalized
        self._begin(Generation(number, 0, dim, old.codec, normalized, teacher, _json(task), _json(views), dataset))
        return number

    def commit(self) -> None:
        """Make everything written so far durable: from here on it survives kill -9 and power loss.

        On an error the rows written since the last commit are dropped and the bank is as it was; only if the error came
        from making the already replaced CURRENT durable, they are there, but may not survive a power loss.
        """
        self._check_writable()
        if self._pending is None or not self._has_changes():
            return self.rollback()
        sealed, state = None, self._store.state
        try:
            sealed = self._pending.seal()
            if state.find(sealed.generation) is None:  # a new one goes in front; empty ones have no use any more
                self._change((sealed, *(g for g in state.generations if g.shards)), sealed.generation)
            else:
                generations = tuple(sealed if g.generation == sealed.generation else g for g in state.generations)
                self._change(generations, sealed.generation)
        except BaseException:
            if sealed not in self._store.state.generations:  # else the error came too late: its files are in use
                self.rollback()
            raise
        finally:
            self._pending = None

    def rollback(self) -> None:
        """Drop everything written since the last commit, and a generation begun since then."""
        if self._pending is not None and os.getpid() == self._pid:
            self._pending.discard()
        self._pending = None

    def evict(self, role: str | None = None, *, generation: int | None = None) -> None:
        """Remove a role's rows from this generation, or a whole other generation. Durable at once, without commit."""
        self._check_writable()
        if (role is None) == (generation is None):
            raise ValueError(f"evict: expected either role or generation, got role={role!r}, generation={generation!r}")
        self._check_settled()
        state, served = self._store.state, self.manifest
        if generation is not None:
            if generation == served.generation or state.find(generation) is None:
                have = sorted(g.generation for g in state.generations if g.generation != served.generation)
                raise ValueError(
                    f"generation: expected one of {have} (this bank serves {served.generation}), got {generation}"
                )
            self._change(tuple(g for g in state.generations if g.generation != generation), served.generation)
            return
        checks.known_role(role or "")
        kept = tuple(shard for shard in served.shards if shard.role != role)
        if kept != served.shards:
            less = replace(served, commit=served.commit + 1, shards=kept)
            self._change(tuple(less if g == served else g for g in state.generations), served.generation)

    def close(self) -> None:
        """Let go of files and lock; rows that were not committed are dropped. Safe to call twice."""
        if self._rows.closed:
            return
        if self._pending is not None and self._pending.rows and os.getpid() == self._pid:
            warnings.warn(f"{self.path}: closed with {self._pending.rows} rows that were never committed", stacklevel=2)
        try:
            self.rollback()
        finally:  # also on a disk that fails
            self._rows.close()
            if os.getpid() == self._pid:
                self._store.release()

    def __enter__(self) -> FeatureBank:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None:
            self.rollback()
        self.close()

    def __del__(self) -> None:
        if "_rows" in self.__dict__:  # else the constructor failed, and so did whoever called it
            self.rollback()
            self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """A bank sent to another process arrives there as a reader of the same generation and the same files."""
        arguments = (self.path, self.generation, self._rows.residency, self._rows.device)
        return type(self)._reopen, arguments

    @classmethod
    def _reopen(cls, path: Path, generation: int, residency: str, device: torch.device | None) -> FeatureBank:
        return cls.open(path, "r", generation=generation, residency=residency, device=device, verify=False)

    def _begin(self, target: Generation) -> Pending:
        codec = make_codec(target.codec, target.dim)
        if target.generation == self.generation:
            codec.codebooks = self._rows.codec.codebooks
        self._pending = Pending(self._store, target, codec)
        return self._pending

    def _change(self, generations: tuple[Generation, ...], served: int) -> None:
        """Commit a new state and serve generation `served` of it; after an error, of the state that the disk is in."""
        number = max(self._store.state.next_generation, served + 1)
        try:
            self._store.commit(generations, number)
        except BaseException:
            self._store.load()
            raise
        finally:
            now = self._store.state.find(served) or self.manifest
            self._rows = Rows(self._store, now, self._rows.residency, self._rows.device, lazy=True)

    def _has_changes(self) -> bool:
        pending = self._pending
        return pending is not None and (pending.rows > 0 or pending.target.generation != self.generation)

    def _check_settled(self) -> None:
        if self._pending is not None and self._has_changes():
            raise RuntimeError(f"{self._pending.rows} rows are not committed; commit() or rollback() first")
        self.rollback()  # what a refused write may have begun

    def _check_writable(self) -> None:
        self._rows.check_open()
        if self.mode != "a":
            raise RuntimeError(f"{self.path} is open for reading; FeatureBank.open(path, mode='a') to write")
        if os.getpid() != self._pid:
            raise RuntimeError(f"{self.path} was opened by process {self._pid}; a forked process may only read from it")


def _json(value: Any) -> Any:
    """As it will be read back (tuples become lists), so that comparing it later is comparing like with like."""
    return json.loads(json.dumps(value))
