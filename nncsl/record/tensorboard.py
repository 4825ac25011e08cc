"""TensorBoard's event files: a mirror of metrics.jsonl, made anew from it whenever a run is continued.

So the two can't disagree: after a kill there is no step twice and none missing, also for readers that know nothing of
TensorBoard's own way of marking a restart.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nncsl.errors import UserError
from nncsl.record.journal import flat

FOLDER = "tensorboard"
_NAMES = "events.out.tfevents.*"


def check_installed() -> None:
    """A UserError where TensorBoard is missing, for asking before a run starts."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as error:
        raise UserError(
            f'--tensorboard needs TensorBoard ({error}): pip install "nncsl[tensorboard]"; '
            f"or leave it out (a run that was started with it: remove its folder {FOLDER}/)"
        ) from error


class EventFile:
    """Scalars ``epoch/NAME`` over the epochs of all tasks, and ``task/NAME`` over the tasks."""

    def __init__(self, folder: Path) -> None:
        check_installed()
        self._folder = folder
        self._writer: Any = None
        self._epochs = 0

    def rebuild(self, lines: Iterable[dict[str, Any]]) -> None:
        """Replaces what is there by these lines; those that were there keep the time at which they happened."""
        from torch.utils.tensorboard import SummaryWriter

        old = sorted(self._folder.glob(_NAMES))
        times = _times(old)
        for path in old:
            path.unlink()
        # The mark at step 0 tells a TensorBoard that is watching to forget what it has read.
        self._writer, self._epochs = SummaryWriter(str(self._folder), purge_step=0), 0
        for line in lines:
            self._write(line, times)
        self._writer.flush()

    def add(self, line: dict[str, Any]) -> None:
        """One more line of the journal, readable for others at once."""
        self._write(line, {})
        self._writer.flush()

    def _write(self, line: dict[str, Any], times: dict[tuple[str, int], float]) -> None:
        kind = line["kind"]
        step = self._epochs if kind == "epoch" else line["task"]
        for name, value in flat(line).items():
            if name not in ("kind", "task", "epoch") and isinstance(value, int | float):
                tag = f"{kind}/{name}"
                self._writer.add_scalar(tag, value, step, walltime=times.get((tag, step)))
        self._epochs += kind == "epoch"


def _times(paths: list[Path]) -> dict[tuple[str, int], float]:
    """(tag, step) to the time recorded; a file that was cut off gives what it has."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    times: dict[tuple[str, int], float] = {}
    for path in paths:
        for event in LegacyEventFileLoader(str(path)).Load():
            times |= {(value.tag, event.step): event.wall_time for value in event.summary.value}
    return times
