"""What a person sees of a run: bars on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TextIO, TypeVar

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.progress import Task as BarTask
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from nncsl.errors import visible

T = TypeVar("T")

# Letters: of a terminal too narrow for bars, of a bar, of "1234/5678" and a time, of a column "task 12".
_NARROW, _BAR, _COUNT, _COLUMN = 80, 24, 20, 10


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


class Outlook(Protocol):
    """How long the whole run will take, from the steps so far."""

    remaining: str

    def after_step(self, task: int, done: int) -> str | None:
        """Count a step, the ``done``-th of its task; return what is to be said of the whole run, once."""

    def pause(self) -> None:
        """Leave out of the count what has passed since the last step."""


class _Counted(MofNCompleteColumn):
    """Done of all, or nothing while it is not known of how many."""

    def render(self, task: BarTask) -> Text:
        return super().render(task) if task.total is not None else Text()


class Reporter:
    """A caption per stage, one line per epoch and a table per task; on a terminal also a bar that moves with steps.

    Tasks and epochs have numbers from 0 in the program and are counted from 1 wherever a person looks.
    """

    def __init__(self, tasks: int, *, quiet: bool = False, silent: bool = False) -> None:
        """quiet: no bars; silent: nothing at all, as another rank speaks."""
        self._tasks, self._epochs, self._phase, self._named = tasks, 0, "", False
        self._console = Screen(quiet=silent)
        self._live = self._console.is_terminal and not self._console.is_dumb_terminal and not quiet and not silent
        # A narrow terminal needs its room for words.
        bars = [BarColumn(_BAR)] if self._console.width >= _NARROW else []
        columns = (TextColumn("{task.description}"), *bars, _Counted(), TimeRemainingColumn(compact=True))
        self._bar = Progress(*columns, TextColumn("{task.fields[note]}"), console=self._console, disable=not self._live)
        self._row = self._bar.add_task("", total=None, visible=False, note="")
        self._task, self._images = 0, 0
        self._began = self._last_line = 0.0
        self._captions: set[str] = set()
        self._outlook: Outlook | None = None

    def __enter__(self) -> "Reporter":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def expect(self, outlook: "Outlook") -> None:
        """From here on the time of the whole run is estimated: said once, and kept up to date beside the bar."""
        self._outlook = outlook

    def begin_task(
        self, task: int, classes: Sequence[str], phases: Sequence[Phase], phase: int, epoch: int, step: int
    ) -> None:
        """phase, epoch, step: where the task goes on."""
        names = ", ".join(classes) if len(classes) <= 10 else f"{len(classes)} classes"
        self.say(f"task {task + 1}/{self._tasks}: {names}")
        steps = [each.epochs * each.steps for each in phases]
        done = sum(steps[:phase]) + (epoch * phases[phase].steps + step if phase < len(phases) else 0)
        title = f"task {task + 1}/{self._tasks}"
        self._bar.reset(self._row, total=sum(steps), completed=done, description=title, visible=True, note="")
        self._task, self._images, self._named = task, 0, len(phases) > 1
        self._captions.clear()

    def begin_phase(self, phase: Phase) -> None:
        """A task's only phase has no name worth saying."""
        self._phase, self._epochs = f"{phase.name}, " if self._named else "", phase.epochs
        self._caption(f"training{f' ({phase.name})' if self._named else ''}")
        self._images, self._began, self._last_line = 0, time.monotonic(), time.monotonic()

    def step(self, epoch: int, losses: Mapping[str, float], images: int) -> None:
        """losses: those that were looked at last; a GPU's are a few steps old."""
        self._images += images
        self._bar.update(self._row, advance=1)
        left = ""
        if self._outlook is not None:
            if (said := self._outlook.after_step(self._task, int(self._bar.tasks[0].completed))) is not None:
                self.say(said)
            left = self._outlook.remaining
        if self._live:
            rate = self._images / (time.monotonic() - self._began)
            parts = [left, f"{rate:.0f} images/s", *(f"{name} {loss:.2f}" for name, loss in losses.items())]
            title = f"task {self._task + 1}/{self._tasks} {self._phase}epoch {epoch + 1}/{self._epochs}"
            self._bar.update(self._row, description=title, note=self._fitting(title, filter(None, parts)))

    def _fitting(self, title: str, parts: Iterable[str]) -> str:
        """As many of the parts, the first ones, as there is room for behind title, bar, count and time."""
        width = self._console.width
        room = width - len(title) - _COUNT - (_BAR + 1 if width >= _NARROW else 0)
        shown = ""
        for part in parts:
            if len(shown) + len(part) > room:
                break
            shown += f"{part}  "
        return shown.rstrip()

    def epoch(self, epoch: int, means: Mapping[str, float], rate: float) -> None:
        """On a terminal the bar says it; elsewhere a line, at most one every ten seconds and the last one of a task."""
        now = time.monotonic()
        if not self._live and (now - self._last_line > 10 or epoch + 1 == self._epochs):
            text = "  ".join(f"{name} {mean:.3f}" for name, mean in means.items())
            self.say(f"  {self._phase}epoch {epoch + 1}/{self._epochs}  {text}  {rate:.0f} images/s")
            self._last_line = now

    def track(self, items: Sequence[T], caption: str) -> Iterator[T]:
        """Give the items, with a bar of their own where there is a terminal, elsewhere a line that says what begins."""
        self._caption(caption)
        row = self._bar.add_task(caption, total=len(items), note="")
        for item in items:
            yield item
            self._bar.advance(row)
        self._bar.remove_task(row)
        if self._outlook is not None:
            self._outlook.pause()

    def _caption(self, text: str) -> None:
        """Without bars: a line, once in a task."""
        if not self._live and text not in self._captions:
            self._captions.add(text)
            self.say(f"  {text} ...")

    def accuracies(self, task: int, row: Sequence[float | None], seen: float | None) -> None:
        """A table, or a line where its columns would not fit."""
        title = f"accuracy after task {task + 1}/{self._tasks}"
        shown = ["-" if value is None else f"{value:.1f}" for value in (*row[: task + 1], seen)]
        if _COLUMN * (task + 3) > self._console.width:
            self.say(f"{title}: {', '.join(shown[:-1])}; seen classes {shown[-1]}")
            return
        table = Table(title=title, title_justify="left")
        for j in range(task + 1):
            table.add_column(f"task {j + 1}", justify="right")
        table.add_column("seen classes", justify="right")
        table.add_row(*shown)
        self._bar.console.print(table)

    def table(self, title: str, rows: Iterable[tuple[str, str]]) -> None:
        table = Table(title=title, title_justify="left", show_header=False)
        for name, value in rows:
            table.add_row(name, value)
        self._bar.console.print(table)


class Waiting:
    """What goes on while there is nothing to see yet: on a terminal one line that changes, elsewhere one a stage."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = console.status("") if console.is_terminal and not console.is_dumb_terminal else None

    def __enter__(self) -> "Waiting":
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def say(self, text: str) -> None:
        """Begin a stage."""
        if self._status is None:
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)
        self.note(text)

    def note(self, text: str) -> None:
        """Show how far the stage is, where a line can change."""
        if self._status is not None:
            self._status.update(Text(text))
