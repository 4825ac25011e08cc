"""A disk whose power may fail: records what a bank does to the real one, and tells what could be left of it.

What a file system promises is little: data is safe after fsync of the file, a name after fsync of its directory, and
that of a directory likewise. Anything later may have happened or not, in any order; a file that was not synced may hold
part of its data, or zeros.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from pathlib import Path

from nncsl.featurebank.files import Disk


@dataclass(frozen=True)
class Operation:
    name: str
    path: str  # relative to the bank
    target: str = ""
    data: bytes = field(default=b"", repr=False)
    offset: int = 0

    def torn(self, fraction: float) -> Operation:
        """A write of which only the first part arrived."""
        return replace(self, data=self.data[: int(len(self.data) * fraction)])

    def __str__(self) -> str:
        return f"{self.name} {self.path}"


class Recorder(Disk):
    """Does everything for real, and takes notes."""

    def __init__(self, root: Path):
        self.root = root
        self.operations: list[Operation] = []
        self.acknowledged: list[int] = []  # how many operations were done when a commit returned
        self._open: dict[int, str] = {}

    def acknowledge(self) -> None:
        self.acknowledged.append(len(self.operations))

    def _note(self, name: str, path: Path | str, **details: object) -> None:
        relative = path if isinstance(path, str) else self._relative(path)
        self.operations.append(Operation(name, relative, **details))  # type: ignore[arg-type]

    def _relative(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else ".."

    def make_directory(self, path: Path) -> None:
        super().make_directory(path)
        self._note("make_directory", path)

    def create(self, path: Path) -> int:
        descriptor = super().create(path)
        self._open[descriptor] = self._relative(path)
        self._note("create", path)
        return descriptor

    def write(self, descriptor: int, data: memoryview, offset: int) -> None:
        super().write(descriptor, data, offset)
        self._note("write", self._open[descriptor], data=bytes(data), offset=offset)

    def truncate(self, descriptor: int, size: int) -> None:
        super().truncate(descriptor, size)
        self._note("truncate", self._open[descriptor], offset=size)

    def sync(self, descriptor: int) -> None:
        super().sync(descriptor)
        self._note("sync", self._open[descriptor])

    def close(self, descriptor: int) -> None:
        super().close(descriptor)
        del self._open[descriptor]

    def replace(self, source: Path, target: Path) -> None:
        super().replace(source, target)
        self._note("replace", source, target=self._relative(target))

    def remove(self, path: Path) -> None:
        super().remove(path)
        self._note("remove", path)

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self._note("sync_directory", path)


@dataclass
class _File:
    written: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    is_directory: bool = False


class Volume:
    """The files after some operations: as a surviving system sees them, and as they may be found after a power loss."""

    def __init__(self, operations: list[Operation]):
        self._names: dict[str, _File] = {}
        self._synced_names: dict[str, _File] = {}
        self._unsynced: list[tuple[str, str, str, _File | None]] = []  # name changes: (directory, old, new, file)
        for operation in operations:
            self._apply(operation)

    def _apply(self, operation: Operation) -> None:
        path = operation.path
        if operation.name in ("create", "make_directory"):
            if operation.name == "make_directory" and path in (*self._names, ".", ".."):
                return
            self._names[path] = _File(is_directory=operation.name == "make_directory")
            self._unsynced.append((_parent(path), "", path, self._names[path]))
        elif operation.name == "write":
            written, end = self._names[path].written, operation.offset + len(operation.data)
            written.extend(bytes(max(0, end - len(written))))
            written[operation.offset : end] = operation.data
        elif operation.name == "truncate":
            del self._names[path].written[operation.offset :]
        elif operation.name == "sync":
            self._names[path].synced = bytes(self._names[path].written)
        elif operation.name == "replace":
            moved = self._names[operation.target] = self._names.pop(path)
            self._unsynced.append((_parent(path), path, operation.target, moved))
        elif operation.name == "link":
            self._names[operation.target] = self._names[path]
            self._unsynced.append((_parent(path), "", operation.target, self._names[path]))
        elif operation.name == "remove":
            if self._names.pop(path, None) is not None:
                self._unsynced.append((_parent(path), path, "", None))
        elif operation.name == "sync_directory":
            for change in [c for c in self._unsynced if c[0] == path]:
                _rename(self._synced_names, change)
                self._unsynced.remove(change)

    def as_seen(self) -> dict[str, bytes]:
        """name -> content, when only the process died."""
        return {name: bytes(file.written) for name, file in self._names.items() if not file.is_directory}

    def after_power_loss(self, dice: random.Random | None) -> dict[str, bytes]:
        """name -> content. Without dice: nothing that was not synced arrived. With dice: any part of it did."""
        names = dict(self._synced_names)
        for change in self._unsynced:
            if dice is not None and dice.random() < 0.5:
                _rename(names, change)
        lost = {name for name, file in self._names.items() if file.is_directory and name not in names}
        return {
            name: self._survived(file, dice)
            for name, file in names.items()
            if not file.is_directory and not any(parent.as_posix() in lost for parent in Path(name).parents)
        }

    @staticmethod
    def _survived(file: _File, dice: random.Random | None) -> bytes:
        if dice is None or bytes(file.written) == file.synced:
            return file.synced
        safe = len(file.synced) if file.written.startswith(file.synced) else 0  # of a file that was only added to
        arrived = bytes(file.written[: dice.randrange(safe, len(file.written) + 1)])
        lost = bytes(len(file.written) - len(arrived)) if dice.random() < 0.5 else b""
        return arrived + lost


def _parent(path: str) -> str:
    return Path(path).parent.as_posix()


def _rename(names: dict[str, _File], change: tuple[str, str, str, _File | None]) -> None:
    _, old, new, file = change
    if old:
        names.pop(old, None)
    if new and file is not None:
        names[new] = file
