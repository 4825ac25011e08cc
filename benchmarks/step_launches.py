"""Device operations, copies and waits of whole training steps of NNCSL, from the draw to the update, without a device.

``python -m nncsl.benchmarks.step_launches`` counts them on the stand-in (stand_in.py) with the Triton kernels, each
launch of which is one operation, and writes results/step-launches.csv beside the rows of other commits. Sizes that
don't change counts are small: the batch, the images of ImageNet-100 (32 and 16 pixels: at 224, whose axes are cut in
two blocks, a large view takes four more products), and the network, one block instead of eight, counted by itself.
"losses" is everything between features and projections and their gradients, the head's own among it.
"""

import argparse
import csv
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import numpy as np
import torch

from nncsl import config as configs
from nncsl.config import build
from nncsl.data.images import ArrayImages
from nncsl.data.sources import Source
from nncsl.data.tasks import split_tasks
from nncsl.files import write_table
from nncsl.methods.base import Step
from nncsl.networks import Outputs

from .provenance import current_commit
from .stand_in import DEVICE, Watch, standing_in

if TYPE_CHECKING:
    from .rehearsal import Rehearsal

RESULTS = Path(__file__).parent / "results" / "step-launches.csv"
COLUMNS = ["commit", "shapes", "part", "operations", "triton", "copies", "waits"]
SMALL = ["unlabeled_batch=8", "bank_views=1", "unlabeled_fraction=1", "labels=5/class", "memory=2000"]
SMALL += ["network.width=8", "network.blocks=[1]", "network.hidden=16", "network.projection=16"]
PARTS = ("draw and render", "network", "losses", "update")


class Shapes(NamedTuple):
    """A task, from 1, of a preset, and settings that make it small."""

    preset: str
    task: int
    settings: tuple[str, ...] = ()


SHAPES = {
    "CIFAR-10 task 2": Shapes("cifar10", 2),
    "CIFAR-10 task 5": Shapes("cifar10", 5),
    "CIFAR-100 task 6": Shapes("cifar100", 6),
    "ImageNet-100 task 20": Shapes("imagenet100", 20, ("views.large.size=32", "views.small.size=16")),
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m nncsl.benchmarks.step_launches", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--out", type=Path, default=RESULTS, help="csv to add to (default: %(default)s)")
    options = parser.parse_args(argv)
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports triton
    commit = current_commit()
    rows = []
    for name in options.shapes:
        with tempfile.TemporaryDirectory() as folder:
            for row in table(name, Path(folder)):
                rows.append({"commit": commit, **row})
                print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    others = []
    if options.out.exists():
        with options.out.open(newline="") as file:
            counted = {(commit, name) for name in options.shapes}
            others = [row for row in csv.DictReader(file) if (row["commit"], row["shapes"]) not in counted]
    write_table(options.out, [*others, *rows], COLUMNS)
    return 0


def table(name: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Give a row for each part of a step, and one for all of it."""
    counted = {part: counts(watch) for part, watch in watches(name, folder).items()}
    whole, losses = counted.pop("whole"), counted["losses"]
    counted["network"] = {key: whole[key] - losses[key] for key in whole}  # what the losses were counted without
    ordered = {part: counted[part] for part in PARTS}
    ordered["all"] = {key: sum(each[key] for each in ordered.values()) for key in whole}
    for part, found in ordered.items():
        yield {"shapes": name, "part": part, **found}


def counts(watch: Watch) -> dict[str, int]:
    """Return the numbers of a watch."""
    triton = sum(event.name.startswith("triton ") for event in watch.events)
    return {
        "operations": watch.count("operation"),
        "triton": triton,
        "copies": watch.count("copy"),
        "waits": watch.count("wait"),
    }


def watches(name: str, folder: Path) -> dict[str, Watch]:
    """Return what happens in a second step: drawing, forward and backward pass as a whole and without the network."""
    with triton_kernels():
        scene = rehearsal(name, folder)
        scene.step(0)
        seen, _ = scene.step(1)
        found = {"draw and render": seen["arrive"], "whole": seen["losses"], "update": seen["update"]}
        with standing_in():
            step = scene.arrive(2).step
        return {**found, "losses": losses_alone(scene, step)}  # type: ignore[dict-item]


def quick_losses(name: str, folder: Path) -> Watch:
    """Return what the losses alone start, with random answers of the old network, as a bank would give them."""
    with triton_kernels():
        scene = rehearsal(name, folder, "teacher_mode=none")
        with standing_in():
            step = scene.arrive(0).step
            sizes = {kind: len(step.batch[kind]) for kind in ("large", "small")}
            sizes["supports"] = int(step.batch["supports"].old.sum())
            rows = torch.randn(sum(sizes.values()), scene.config.network.projection).to(DEVICE)
            targets = dict(zip(sizes, rows.split(list(sizes.values())), strict=True))
        return losses_alone(scene, step._replace(targets=targets))


def rehearsal(name: str, folder: Path, *settings: str) -> "Rehearsal":
    """Return the task of some shapes, ready to be stepped through."""
    from .rehearsal import Rehearsal

    shapes = SHAPES[name]
    config = configs.load(shapes.preset, map(build.parse_assignment, [*SMALL, *shapes.settings, *settings]))
    source = images(100 if config.tasks == 20 or shapes.preset == "cifar100" else 10)
    tasks = split_tasks(source, tasks=config.tasks, labels=config.labels, seed=0)
    return Rehearsal(config, source, tasks, shapes.task - 1, folder)


def losses_alone(scene: "Rehearsal", step: Step) -> Watch:
    """Return what happens between a network's outputs, here random ones, and their gradients."""
    network, made = scene.method.network, []
    sizes = network.head.in_features, scene.config.network.projection

    def outputs(rows: int) -> Outputs:
        made.append(Outputs(*(torch.randn(rows, size).to(DEVICE).requires_grad_() for size in sizes)))
        return made[-1]

    step = step._replace(pixels=Unseen(step.batch))
    with standing_in():  # constants come to the device, and stay
        scene.compute(step._replace(forward=outputs))
    given = iter([Outputs(*(part.detach().requires_grad_() for part in each)) for each in made])
    with standing_in() as watch:
        scene.compute(step._replace(forward=lambda _: next(given)))
    return watch


class Unseen(dict[str, Any]):
    """A batch whose pixels nobody puts together: that belongs to the network's pass."""

    def share(self, names: Sequence[str]) -> int:
        """Return what a pass is given: how many rows there are."""
        return sum(len(self[name]) for name in names)


def images(classes: int) -> Source:
    """Return ten random images of each class."""
    labels = np.arange(10 * classes) % classes
    array = ArrayImages(np.random.default_rng(0).integers(0, 256, (len(labels), 32, 32, 3), dtype=np.uint8))
    return Source("random", array, labels, array, labels, tuple(map(str, range(classes))))


@contextmanager
def triton_kernels() -> Iterator[None]:
    """Send tensors of the stand-in to the Triton kernels, and write every launch down instead of computing it.

    Nothing that is counted depends on a result, and the interpreter is slow.
    """
    from triton.runtime.interpreter import InterpretedFunction

    from nncsl.kernels import choice

    def noted(self: Any, *args: Any, **kwargs: Any) -> None:
        modes = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
        watch = next((mode for mode in reversed(modes) if isinstance(mode, Watch)), None)
        if watch is not None:
            watch.note("operation", f"triton {self.__name__}")

    taken = [mock.patch.object(choice, f"{who}_refuses", lambda *_: None) for who in ("device", "triton")]
    with mock.patch.object(InterpretedFunction, "run", noted), taken[0], taken[1]:
        yield


if __name__ == "__main__":
    raise SystemExit(main())
