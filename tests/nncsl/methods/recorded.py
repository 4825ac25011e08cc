"""Short runs of every method and teacher mode whose results are kept, so that a change that moves them is noticed.

``python -m tests.nncsl.methods.recorded`` writes them anew: after a change that is meant to move them, in its commit.
"""

import hashlib
import json
import sys
import tempfile
from pathlib import Path

import torch

from nncsl import config, engine, methods, runs
from nncsl.batches import Moment
from nncsl.benchmarks.provenance import processor
from nncsl.config import build
from nncsl.data.tasks import Stream
from nncsl.replay import Memory
from nncsl.teachers import Teacher
from tests.nncsl.conftest import run_maker
from tests.nncsl.scenes import SecondTask

RECORD = Path(__file__).with_name("recorded.json")
SETTINGS = ("tasks=2", "epochs=2", "network.width=8", "network.hidden=16", "bank_views=2")
NO_LOSSES = ("kind", "task", "epoch", "phase", "lr", "images_per_second", "unlabeled_accuracy")
# What else makes a method's runs short, where that is not the number of epochs.
SHORT = {"gdumb": ("own.epochs=0",)}
CASES = {name: (f"method={name}", *SHORT.get(name, ())) for name in methods.METHODS}
CASES |= {f"nncsl {mode}": (f"teacher_mode={mode}",) for mode in ("model", "none")}


def loaded(case):
    """The case's configuration."""
    return config.load("digits", map(build.parse_assignment, (*SETTINGS, *CASES[case])))


def results(folder):
    """What a finished run learned: a hash of all its weights, and the losses of every epoch."""
    saved = torch.load(folder / "checkpoint" / "state.pt", weights_only=True)["method"]
    weights = hashlib.sha256()
    for name in sorted(saved):
        weights.update(name.encode() + saved[name].contiguous().numpy().tobytes())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [{name: line[name] for name in line if name not in NO_LOSSES} for line in lines if line["kind"] == "epoch"]
    return {"weights": weights.hexdigest()[:16], "losses": losses}


def first_losses(loaded, make_run):
    """The losses of the first step of task 1 and, where there is one, of a task 2 before which nothing was learned.

    No update has happened: other processors find the same, to rounding.
    """
    run = make_run(loaded, "first")
    method = methods.build(run.config, run.source.num_classes).to(run.device)
    setup = engine.set_up(run, Stream(run.source, run.tasks), Memory(), 0)
    if method.remembers_first:
        setup = engine.set_up(run, Stream(run.source, run.tasks), Memory(setup.task.labeled, setup.task.labels), 0)
    phase = method.phases(setup.task)[0]
    methods.begin(method, 0, phase, setup.task)
    method.mode(phase, setup.task)
    found = [method.losses(engine.look(method, setup, phase, Moment(0, 0, 0, 0), Teacher(), method.network))]
    if len(run.tasks) > 1:
        scene = SecondTask(loaded, make_run, "scene")
        teacher = scene.teacher()
        found.append(scene.losses(scene.method, teacher, pool=teacher.pool(0)))
        teacher.close()
    return [{name: part.item() for name, part in losses.parts.items()} for losses in found]


def machine():
    """What bits depend on: the order of sums is the processor's, the library's and the threads' affair."""
    return {"processor": processor(), "torch": torch.__version__, "threads": torch.get_num_threads()}


def main():
    torch.set_num_threads(1)
    found = {}
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            runs.start(loaded(case), Path(folder) / "run", quiet=True)
            found[case] = results(Path(folder) / "run")
            found[case]["first"] = first_losses(loaded(case), run_maker(Path(folder)))
    RECORD.write_text(json.dumps({"machine": machine(), "runs": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
