"""metrics.jsonl: one line per epoch and one per task, in order, each exactly once whatever interrupts the run."""

import json
import os
from pathlib import Path
from typing import Any

from nncsl.checkpoint import write_text


class Journal:
    """Lines are written before the checkpoint that makes them true; `rewind` removes those that never became so."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def epoch(self, task: int, epoch: int, **values: float) -> None:
        self._append({"kind": "epoch", "task": task, "epoch": epoch, **values})

    def task(self, task: int, **values: Any) -> None:
        self._append({"kind": "task", "task": task, **values})

    def rewind(self, task: int, epoch: int) -> None:
        """Keeps what happened before this epoch of this task."""
        kept = [line for line in self.read() if (line["task"], line.get("epoch", float("inf"))) < (task, epoch)]
        write_text(self._path, "".join(json.dumps(line) + "\n" for line in kept))

    def read(self) -> list[dict[str, Any]]:
        """All complete lines; a last one that was cut off is not there yet."""
        if not self._path.exists():
            return []
        lines = self._path.read_text().split("\n")[:-1]
        return [json.loads(line) for line in lines]

    def _append(self, line: dict[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
