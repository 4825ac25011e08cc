"""What every method costs beside NNCSL: the time of a step and of a task, and the memory they take.

``python -m nncsl.benchmarks.methods [--preset digits] [--data-dir DIR]`` takes the last task but one of the preset, as
some methods do less in the last, and lets all methods make steps in turns, phase by phase, in one process: times are
ratios to NNCSL's in the same round, memory is counted, and so is what a whole run keeps beside its student. Writes
benchmarks/results/methods.csv.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from nncsl import accounting, config, engine, methods, networks, optim, passes, teachers
from nncsl.batches import Moment
from nncsl.config import build
from nncsl.data.catalog import open_data
from nncsl.data.tasks import Stream
from nncsl.files import write_table
from nncsl.interruption import Interruption
from nncsl.planner.foreseen import Foresight
from nncsl.record import ledger
from nncsl.record.state import RunState
from nncsl.runs import find_device
from nncsl.teachers import Surroundings
from nncsl.terminal import Reporter

from .provenance import current_commit, processor

RESULTS = Path(__file__).parent / "results" / "methods.csv"
REFERENCE = "nncsl"
STEPS = 3  # in a row: the first after other methods' steps finds cold caches
Row = dict[str, str]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m nncsl.benchmarks.methods", description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="digits", help="tasks, network and views (default: %(default)s)")
    parser.add_argument("--data-dir", help="where the preset's data lies")
    parser.add_argument("--methods", nargs="+", metavar="NAME", help=f"these, beside {REFERENCE} (default: all)")
    parser.add_argument("--rounds", type=int, default=10, help="turns of every method (default: %(default)s)")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--out", type=Path, default=RESULTS, help="CSV file to write (default: %(default)s)")
    options = parser.parse_args(argv)
    names = [name for name in options.methods or methods.METHODS if name != REFERENCE]
    with tempfile.TemporaryDirectory() as folder:
        lessons = {name: phases_of(name, options, Path(folder)) for name in (REFERENCE, *names)}
        for _ in track(range(options.rounds + 1), "steps in turns"):
            for taken in lessons.values():
                for lesson in taken:
                    lesson.steps()
    rows = [row(name, lessons[name], lessons[REFERENCE]) for name in lessons]
    show(rows, options.preset)
    about = {"preset": options.preset, "rounds": str(options.rounds), "threads": str(torch.get_num_threads())}
    about |= {"commit": current_commit(), "processor": processor()}
    write_table(options.out, [{**each, **about} for each in rows], [*rows[0], *about])
    return 0


class Lesson:
    """A method in one phase of its last task but one, which it has reached as the loop would, but without a step.

    kept: bytes that a whole run, with the preset's bank, keeps beside its student when that is most.
    """

    def __init__(self, run: engine.Run, number: int, kept: int) -> None:
        self.run, self.number, self.kept = run, number, kept
        self.method = methods.build(run.config, run.source.num_classes).to(run.device)
        self.state, stream = RunState(), Stream(run.source, run.tasks)
        count = max(1, len(run.tasks) - 1)
        for index in range(count):
            self.setup = self._set_up(stream, index)
            task = self.setup.task
            phases = self.method.phases(task)
            self.phase, self.phases = phases[number % len(phases)], len(phases)
            last = index + 1 == count
            for begun, phase in enumerate(phases[: number + 1] if last else phases):
                self.optimizers = methods.begin(self.method, begun, phase, task)
                with networks.evaluating(self.method):
                    self.method.prepare(phase, task, self.state.memory, self.setup.render)
            if not last:
                if self.method.uses_memory and not self.method.remembers_first:
                    engine.remember(run, self.method, self.state, stream, task)
                with networks.evaluating(self.method):
                    self.method.end(task, self.state.memory, self.setup.render)
        self.method.mode(self.phase, task)
        self.forward = passes.forward(self.method.network, passes.Passes())
        around = Surroundings(run.config, "", run.folder, run.device, run.reporter, Interruption())
        self.teacher = teachers.open_teacher(self.method, around)
        asks = self.method.asks(self.phase, task, self.state.memory)
        self.teacher.begin(asks, self.phase, task, self.setup.render, self.state, None)
        self.views, self.done = 0, 0
        self.seconds: list[float] = []
        self.state.peak(**accounting.module_bytes(self.method), gradients=accounting.gradient_bytes(self.method))

    def _set_up(self, stream: Stream, index: int) -> engine.Setup:
        setup = engine.set_up(self.run, stream, self.state.memory, index, self.method.keeps())
        if self.method.remembers_first:
            engine.remember(self.run, self.method, self.state, stream, setup.task)
            return engine.set_up(self.run, stream, self.state.memory, index, self.method.keeps())
        return setup

    def steps(self) -> None:
        """Make some steps and note the time of one; the first ones are counted instead, byte by byte."""
        began = time.perf_counter()
        for _ in range(STEPS):
            if self.done:
                self._step()
                continue
            with accounting.saved_activations(self.method) as activations:
                self._step()
            used = sum(map(accounting.optimizer_bytes, self.optimizers))
            self.state.peak(activations=activations.peak, optimizer=used)
        if self.run.device.type == "cuda":
            torch.cuda.synchronize()
        if self.done > STEPS:
            self.seconds.append((time.perf_counter() - began) / STEPS)

    def _step(self) -> None:
        epoch, step = divmod(self.done % (self.phase.epochs * self.phase.steps), self.phase.steps)
        now = Moment(self.number, epoch, step, epoch * self.phase.steps + step, self.teacher.pool(0))
        optim.set_rates(self.optimizers, self.phase.rate(0.0))
        seen = engine.look(self.method, self.setup, self.phase, now, self.teacher, self.forward)
        self.method.zero_grad(set_to_none=True)
        with networks.autocast(self.run.config.precision, self.run.device):
            losses = self.method.losses(seen)
        losses.total.backward()  # type: ignore[no-untyped-call]
        for optimizer in filter(optim.has_gradient, self.optimizers):
            optimizer.step()
        self.views, self.done = seen.views, self.done + 1


def phases_of(name: str, options: argparse.Namespace, folder: Path) -> list[Lesson]:
    """Return a lesson for each phase of the task."""
    # One set of stored views: filling a bank is not what is measured here.
    sets = (
        f"method={name}",
        "bank_views=1",
        "bank_support_views=1",
        "bank_refresh_epochs=0",
        f"device={options.device}",
    )
    overrides = [{"data_dir": options.data_dir}, *map(build.parse_assignment, sets)]
    loaded = methods.settled(config.load(options.preset, overrides))
    source, tasks = open_data(loaded)
    usual = methods.settled(config.load(options.preset, [overrides[0], build.parse_assignment(f"method={name}")]))
    kept = Foresight(source.train, tasks, usual).peak(usual)[ledger.TOTAL]
    made: list[Lesson] = []
    while not made or len(made) < made[0].phases:
        place = folder / f"{name}-{len(made)}"
        place.mkdir()
        run = engine.Run(loaded, source, tasks, place, find_device(loaded.device), Reporter(len(tasks), quiet=True))
        made.append(Lesson(run, len(made), kept))
    return made


def row(name: str, taken: list[Lesson], reference: list[Lesson]) -> Row:
    """One method's costs; a step's are those of all phases, each weighted by its steps."""
    counts = [lesson.phase.epochs * lesson.phase.steps for lesson in taken]
    rounds = zip(*(lesson.seconds for lesson in taken), strict=True)
    seconds = [sum(c * s for c, s in zip(counts, each, strict=True)) for each in rounds]
    whole = reference[0].phase.epochs * reference[0].phase.steps
    ratios = [mine / (theirs * whole) for mine, theirs in zip(seconds, reference[0].seconds, strict=True)]
    task = statistics.median(ratios)
    return {
        "method": name,
        "phases": " + ".join(lesson.phase.name for lesson in taken),
        "steps of a task": str(sum(counts)),
        "views of a step": " + ".join(str(lesson.views) for lesson in taken),
        "time of a step": f"{task * whole / sum(counts):.2f}",
        "time of a task": f"{task:.2f}",
        "memory": f"{memory(taken) / memory(reference):.2f}",
        "MB": f"{memory(taken) / 1e6:.1f}",
        "kept MB": f"{taken[0].kept / 1e6:.3f}",
    }


def memory(taken: list[Lesson]) -> int:
    """Bytes of networks, gradients, optimizer, activations, teacher and bank, in the phase that has most."""
    return max(sum(lesson.state.peak_memory.values()) for lesson in taken)


def show(rows: list[Row], preset: str) -> None:
    table = Table(*rows[0], title=f"{preset}, last task but one; times and memory relative to {REFERENCE}")
    for each in rows:
        table.add_row(*each.values())
    Console().print(table)


if __name__ == "__main__":
    raise SystemExit(main())
