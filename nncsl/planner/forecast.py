"""How long a run would take, task by task, as ``nncsl plan`` shows it."""

from dataclasses import dataclass
from typing import Any

from rich.table import Table

from nncsl.planner.duration import Work, words


@dataclass(frozen=True)
class Forecast:
    """The work of every task and the seconds it takes here; advice: what would be quicker, if anything is known."""

    works: tuple[Work, ...]
    seconds: tuple[float, ...]
    advice: str

    @property
    def sentence(self) -> str:
        return f"{words(sum(self.seconds))} for all tasks on this machine{self.advice}"

    @property
    def table(self) -> Table:
        """A line per task, counted from 1."""
        table = Table("task", title="Time, estimated from a few small steps", title_justify="left")
        for heading in ("steps", "views per step", "time"):
            table.add_column(heading, justify="right")
        for number, (work, seconds) in enumerate(zip(self.works, self.seconds, strict=True), 1):
            table.add_row(str(number), f"{work.steps:,}", f"{work.views:,.0f}", words(seconds))
        return table

    @property
    def record(self) -> dict[str, Any]:
        """The same as plain values."""
        return {"seconds": sum(self.seconds), "seconds_by_task": list(self.seconds)}
