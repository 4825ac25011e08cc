"""What a person sees of a run (bars on a terminal, plain lines elsewhere), and how they stop it (Ctrl-C, SIGTERM)."""

import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol, TextIO, TypeVar

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table

from nncsl.errors import visible

T = TypeVar("T")


class Guarded:
    """A text stream that shows control characters instead of sending them: names and values are anybody's."""

    def __init__(self, stream: TextIO) -> None:
        self.unguarded = stream

    def write(self, text: str) -> int:
        encoding = self.unguarded.encoding or "utf-8"
        return self.unguarded.write(visible(text).encode(encoding, "backslashreplace").decode(encoding))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unguarded, name)


@contextmanager
def guarded_output() -> Iterator[None]:
    """Let everything that is printed inside the block pass through :class:`Guarded`."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (Guarded(stream) for stream in before)  # type: ignore[assignment]
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


class Screen(Console):
    """Rich's console: it may command the terminal, what it is given to show may not."""

    def __init__(self, *, stderr: bool = False, quiet: bool = False) -> None:
        stream = sys.stderr if stderr else sys.stdout
        super().__init__(file=getattr(stream, "unguarded", stream), quiet=quiet)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Give the segments of what is shown; those by which Rich itself moves the cursor pass as they are."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


class Phase(Protocol):
    """What is shown of a phase."""

    @property
    def name(self) -> str: ...
    @property
    def epochs(self) -> int: ...
    @property
    def steps(self) -> int: ...


class Reporter:
    """One line per epoch and a table per task; on a terminal also a bar that moves with every step."""

    def __init__(self, tasks: int, *, quiet: bool = False, silent: bool = False) -> None:
        """quiet: no bars; silent: nothing at all, as another rank speaks."""
        self._tasks, self._epochs, self._phase, self._named = tasks, 0, "", False
        self._console = Screen(quiet=silent)
        self._live = self._console.is_terminal and not quiet and not silent
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, TextColumn("{task.fields[note]}"), console=self._console, disable=not self._live)
        self._row = self._bar.add_task("", total=None, note="")
        self._task, self._images = 0, 0
        self._began = self._last_line = 0.0

    def __enter__(self) -> "Reporter":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def begin_task(
        self, task: int, classes: Sequence[str], phases: Sequence[Phase], phase: int, epoch: int, step: int
    ) -> None:
        """phase, epoch, step: where the task goes on."""
        names = ", ".join(classes) if len(classes) <= 10 else f"{len(classes)} classes"
        self.say(f"task {task + 1}/{self._tasks}: {names}")
        steps = [each.epochs * each.steps for each in phases]
        done = sum(steps[:phase]) + (epoch * phases[phase].steps + step if phase < len(phases) else 0)
        self._bar.reset(self._row, total=sum(steps), completed=done)
        self._task, self._images, self._named = task, 0, len(phases) > 1
        self._began = self._last_line = time.monotonic()

    def begin_phase(self, phase: Phase) -> None:
        """A task's only phase has no name worth saying."""
        self._phase, self._epochs = f"{phase.name}, " if self._named else "", phase.epochs

    def step(self, epoch: int, losses: Mapping[str, float], images: int) -> None:
        """losses: those that were looked at last; a GPU's are a few steps old."""
        self._images += images
        if self._live:
            rate = self._images / (time.monotonic() - self._began)
            note = "  ".join(f"{name} {loss:.2f}" for name, loss in losses.items()) + f"  {rate:.0f} images/s"
            title = f"task {self._task + 1}/{self._tasks} {self._phase}epoch {epoch + 1}/{self._epochs}"
            self._bar.update(self._row, advance=1, description=title, note=note)

    def epoch(self, epoch: int, means: Mapping[str, float], rate: float) -> None:
        """On a terminal the bar says it; elsewhere a line, at most one every ten seconds and the last one of a task."""
        now = time.monotonic()
        if not self._live and (now - self._last_line > 10 or epoch + 1 == self._epochs):
            text = "  ".join(f"{name} {mean:.3f}" for name, mean in means.items())
            self.say(f"  {self._phase}epoch {epoch + 1}/{self._epochs}  {text}  {rate:.0f} images/s")
            self._last_line = now

    def track(self, items: Sequence[T], description: str) -> Iterator[T]:
        """The items, with a bar of their own where there is a terminal."""
        row = self._bar.add_task(description, total=len(items), note="")
        for item in items:
            yield item
            self._bar.advance(row)
        self._bar.remove_task(row)

    def accuracies(self, task: int, row: Sequence[float], seen: float) -> None:
        table = Table(title=f"accuracy after task {task + 1}/{self._tasks}", title_justify="left")
        for j in range(task + 1):
            table.add_column(f"task {j + 1}", justify="right")
        table.add_column("seen classes", justify="right")
        table.add_row(*(f"{value:.1f}" for value in row[: task + 1]), f"{seen:.1f}")
        self._bar.console.print(table)

    def table(self, title: str, rows: Iterable[tuple[str, str]]) -> None:
        table = Table(title=title, title_justify="left", show_header=False)
        for name, value in rows:
            table.add_row(name, value)
        self._bar.console.print(table)


class Interrupted(Exception):
    """The run stopped because it was asked to; it can be resumed."""


class Interruption:
    """Inside the block the first signal is only noted; a second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "Interruption":
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True
