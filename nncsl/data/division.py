"""How classes are divided into tasks: by given sizes, or as evenly as they go."""

from collections.abc import Mapping, Sequence
from typing import Any

from nncsl.errors import ConfigError


def divided(classes: int, tasks: int) -> tuple[int, ...]:
    """Return how many classes each task has, as evenly as they go, larger ones first: 10 in 3 are (4, 3, 3)."""
    each, left = divmod(classes, tasks)
    return tuple(each + (index < left) for index in range(tasks))


def task_sizes(classes: int, tasks: int, given: Sequence[int] | None, name: str) -> tuple[int, ...]:
    """Return how many of a data set's classes each task has; given: the sizes that were asked for."""
    if tasks > classes:
        raise ConfigError(f"tasks={tasks}: {name} has {classes} classes, and every task needs one; ask for fewer")
    if given is None or tasks == 1:
        return divided(classes, tasks)
    if sum(given) != classes:
        raise ConfigError(
            f"tasks={','.join(map(str, given))}: that is {sum(given)} classes, but {name} has {classes}; the sizes "
            f"have to add up to it, e.g. --tasks {','.join(map(str, divided(classes, tasks)))}"
        )
    return tuple(given)


def with_sizes(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in which ``tasks`` is a number: a list of sizes, "4,3,3" or [4, 3, 3], becomes ``task_sizes``."""
    tasks = values.get("tasks")
    if "task_sizes" in values or tasks is None:
        return dict(values)
    if isinstance(tasks, str):
        parts = tasks.split(",")
        if not all(part.strip().isdecimal() and len(part) < 10 for part in parts):
            raise ConfigError(f"tasks={tasks!r}: expected a number of tasks, or how many classes each has: 4,3,3")
        tasks = [int(part) for part in parts] if len(parts) > 1 else int(tasks)
    if isinstance(tasks, list | tuple):
        return {**values, "tasks": len(tasks), "task_sizes": tasks}
    return {**values, "tasks": tasks, "task_sizes": None}
