"""How many device operations a call starts, how often it waits, and how often a kernel is compiled: by counting."""

import csv

import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("counted in Triton's interpreter", allow_module_level=True)

from nncsl.benchmarks import inductor_launches
from nncsl.benchmarks import kernels_launches as launches

GOALS = {
    "snn forward": 1, "snn backward": 2, "snn_loss": 4, "nnd_loss": 4, "losses of a step": 16,
    "summed losses of a step": 21,
}  # fmt: skip


@pytest.mark.parametrize("shapes", list(launches.SHAPES))
def test_few_operations_and_no_waits(shapes: str) -> None:
    rows = list(launches.table(shapes=[shapes], providers=["triton"]))
    for goal, most in GOALS.items():
        found = [row["operations"] for row in rows if row["call"] in (goal, f"{goal} forward", f"{goal} backward")]
        assert 0 < sum(found) <= most, goal
    assert not any(row["waits"] for row in rows)


def test_eager_starts_many_more() -> None:
    """What is counted is not just always little."""
    counts = launches.count(launches.calls("eager", 32, 20, 4, 16)["snn_loss"])
    assert sum(found.aten for found in counts.values()) > 80
    with launches.counting() as counter:
        x = torch.arange(3.0)
        assert x[x > 1].sum().item() == 2
    assert counter.waits == 2


def recorded() -> list[dict[str, str]]:
    path = launches.Path(launches.__file__).parent / "results" / "kernels-launches.csv"
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_recorded_table_is_that_of_this_code() -> None:
    for row in launches.table(shapes=["CIFAR-10 task 2"], providers=["eager", "triton"]):
        assert {name: str(value) for name, value in row.items()} in recorded()


def test_what_torch_compile_would_start_is_read_from_its_code() -> None:
    """For a GPU that is not there. Fusing starts fewer operations than eager, and not as few as one kernel does."""
    call = launches.calls("eager", 1024, 10, 2, 128)["snn"]
    found = {direction: sum(numbers) for direction, numbers in inductor_launches.count(*call).items()}
    rows = [row for row in recorded() if row["provider"] == "torch.compile" and row["shapes"] == "CIFAR-10 task 2"]
    known = {row["call"]: int(row["operations"]) for row in rows}
    assert found == {direction: known[f"snn {direction}"] for direction in ("forward", "backward")}
    assert 1 < found["forward"] < 15 and 2 < found["backward"] < 33


# How many kernels a call has, forward and backward, with few supports and with many.
KERNELS = {"snn": (3, 7), "snn_loss": (4, 9), "nnd_loss": (3, 8)}


@pytest.mark.parametrize("first", [50, 650], ids=["few", "many"])
@pytest.mark.parametrize("name", KERNELS)
def test_nothing_is_compiled_again_as_tasks_come(name: str, first: int) -> None:
    """CIFAR-100 in ten tasks: the supports and classes grow, the number of queries stays or varies."""

    def compiled(task: int, n: int) -> set[tuple[object, ...]]:
        call = launches.calls("triton", n, first + 47 * task, 10 * (task + 1), 16)[name]
        counts = launches.count(call)
        return counts["forward"].compiled | counts["backward"].compiled

    of_first_task = compiled(0, 8)
    assert len(of_first_task) == KERNELS[name][first > 640]
    for task in range(1, 9) if first < 640 else ():  # the interpreter is slow
        assert compiled(task, 8) == of_first_task
    assert compiled(9, 20) == of_first_task
