"""What a person should know of a run's data before they trust its figures: said in the terminal and in the report."""

from collections.abc import Sequence

from nncsl import methods


def remarks(
    method: str, memory: int, sizes: Sequence[int], labeled: Sequence[int], left_out: Sequence[str]
) -> list[str]:
    """Return sentences; sizes: how many classes, and labeled: how many labels each task has; left_out: images."""
    said = []
    if len(set(sizes)) > 1:
        said.append(f"Tasks are of unequal size: {', '.join(map(str, sizes))} classes.")
    bare = [index + 1 for index, count in enumerate(labeled) if not count]
    if bare and method in methods.METHODS:
        declared = methods.METHODS[method]
        remembered = declared.uses_memory and (memory or declared.remembers_all)
        what = declared.without_labels if remembered else "nothing is trained"
        which = f"Task {bare[0]} has" if len(bare) == 1 else f"Tasks {', '.join(map(str, bare))} have"
        said.append(
            f"{which} no labels: {what}; {method} can't learn what these classes are called, so expect 0% there, and "
            "averages that count it."
        )
    if left_out:
        said.append(f"{len(left_out)} images can't be read and are left out; tasks.json names them.")
    return said
