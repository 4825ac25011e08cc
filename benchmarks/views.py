"""Images per second of seed-keyed views against torchvision's per-image pipeline on Pillow images, both on one thread.

Seconds are those of the processor, which other work on the machine disturbs less than those of the clock.

``python -m nncsl.benchmarks.views [--data-dir DIR]`` prints three tables and writes them to results/views.json:
whole recipes side by side (the two sides take turns within one run), where the time of ours goes, and each operation
against the library's own, which is what decided that these operations are written here.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_sample_images

from nncsl.data import blur, colors, crops, staged, views
from nncsl.data.torchvision_compat import torchvision
from nncsl.data.views import Crop, ViewPolicy, draw, make_views, render
from nncsl.files import write_text

from .provenance import current_commit, processor

T, F = torchvision.transforms, torchvision.transforms.functional
RESULTS = Path(__file__).parent / "results" / "views.json"
POLICIES = {
    "cifar": ViewPolicy(
        large=Crop(2, 32, (0.75, 1.0)),
        small=Crop(2, 18, (0.3, 0.75)),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.201),
    ),
    "imagenet": ViewPolicy(
        large=Crop(2, 224, (0.14, 1.0)),
        small=Crop(2, 96, (0.05, 0.14)),
        color=1.0,
        solarize=0.0,
        equalize=0.0,
        gray=0.2,
        blur=0.5,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
    ),
}
Row = dict[str, Any]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m nncsl.benchmarks.views", description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, help="folder with cifar-10-batches-bin (default: tiles of two photos)")
    parser.add_argument("--images", type=int, default=256, help="small images per batch (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=15, help="turns of each side (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="JSON file to write (default: %(default)s)")
    options = parser.parse_args(argv)
    small, source = small_images(options.images, options.data_dir)
    images = {"cifar": small, "imagenet": large_images(20)}
    with one_thread():
        report = {
            "commit": current_commit(),
            "machine": {"processor": processor(), "cores": os.cpu_count(), "threads": 1},
            "versions": {"torch": torch.__version__, "torchvision": torchvision.__version__, "numpy": np.__version__},
            "images": {"cifar": source, "imagenet": "two photos resized to 256 x 384"},
            "recipes": [recipe(name, images[name], options.repeats) for name in POLICIES],
            "breakdown": [
                row
                for name in POLICIES
                for kind in ("large", "small")
                for row in breakdown(name, kind, images[name], options.repeats)
            ],
            "operations": operations(small, options.repeats),
        }
    show(report)
    write_text(options.out, json.dumps(report, indent=1) + "\n")
    return 0


def small_images(count: int, data_dir: Path | None) -> tuple[np.ndarray, str]:
    """uint8 [count, 32, 32, 3] and what they are."""
    if data_dir is not None:
        path = data_dir / "cifar-10-batches-bin" / "data_batch_1.bin"
        if not path.is_file():
            raise SystemExit(f"no {path}: --data-dir takes the folder that holds CIFAR-10's binary version")
        records = np.fromfile(path, dtype=np.uint8).reshape(-1, 3073)[:count, 1:]
        images = records.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1).copy()
        return images, f"{len(images)} images of CIFAR-10"
    photos = np.stack(load_sample_images().images)[:, :416]
    tiles = photos.reshape(2, 13, 32, 20, 32, 3).transpose(1, 3, 0, 2, 4, 5).reshape(-1, 32, 32, 3)
    return np.resize(tiles, (count, 32, 32, 3)), f"{count} tiles of two photos"


def large_images(count: int) -> np.ndarray:
    """uint8 [count, 256, 384, 3]."""
    photos = [np.asarray(Image.fromarray(photo).resize((384, 256))) for photo in load_sample_images().images]
    return np.resize(np.stack(photos), (count, 256, 384, 3))


def per_image_pipeline(policy: ViewPolicy, kind: str) -> Callable[[Image.Image], torch.Tensor]:
    """The usual way: one Pillow image after the other through torchvision's transforms."""
    crop, s = policy.crop(kind), policy.color
    steps = [
        T.RandomResizedCrop(crop.size, crop.area, crop.aspect),
        T.RandomHorizontalFlip(policy.flip),
        T.RandomApply([T.ColorJitter(0.8 * s, 0.8 * s, 0.8 * s, 0.2 * s)], p=policy.jitter),
    ]
    if policy.gray:
        steps.append(T.RandomGrayscale(policy.gray))
    if policy.solarize:
        steps.append(
            T.RandomApply([T.Lambda(lambda image: F.solarize(image, torch.rand(1).item() * 256))], policy.solarize)
        )
    if policy.equalize:
        steps.append(T.RandomEqualize(policy.equalize))
    if policy.blur:
        steps.append(T.RandomApply([T.GaussianBlur(17, (0.1, 2.0))], p=policy.blur))
    return T.Compose([*steps, T.ToTensor(), T.Normalize(policy.mean, policy.std)])


def recipe(name: str, images: np.ndarray, repeats: int) -> Row:
    """Two large and two small views of every image: both sides in turns, images per second and their ratio."""
    policy, n = POLICIES[name], len(images)
    pillow = [Image.fromarray(image) for image in images]
    pipelines = {kind: per_image_pipeline(policy, kind) for kind in ("large", "small")}
    twice, ids, slots = np.concatenate([images, images]), np.tile(np.arange(n), 2), np.repeat([0, 1], n)

    def ours() -> None:
        for kind in ("large", "small"):
            make_views(twice, ids, slots, policy=policy, kind=kind, seed=0, task=0)

    def theirs() -> None:
        for pipeline in pipelines.values():
            for _ in range(2):
                torch.stack([pipeline(image) for image in pillow])

    seconds = in_turns([ours, theirs], repeats)
    ratios = [slow / fast for fast, slow in zip(*seconds, strict=True)]
    rates = [[n / second for second in side] for side in seconds]
    return {
        "recipe": name,
        "images": n,
        "ours": quantiles(rates[0]),
        "pillow": quantiles(rates[1]),
        "ratio": quantiles(ratios),
    }


def breakdown(name: str, kind: str, images: np.ndarray, repeats: int) -> list[Row]:
    """Microseconds per view of the parts of ours, each measured alone on one chunk that the renderer would take."""
    policy = POLICIES[name]
    size = policy.crop(kind).size
    n = next(views._chunks(images, size, torch.device("cpu"))).stop
    images, ids, slots = images[:n], np.arange(n), np.zeros(n, dtype=np.int64)
    parameters = partial(draw, policy, kind, seed=0, task=0, ids=ids, slots=slots, sizes=images.shape[1:3])
    drawn = parameters()
    sizes, never = np.broadcast_to(images.shape[1:3], (n, 2)), np.zeros(n, dtype=bool)
    cut = partial(staged.cut, images, sizes, drawn, policy, kind, slice(0, n))
    levels = torch.from_numpy(cut().squares).permute(0, 3, 1, 2).float().contiguous()

    def alone(jitter: str) -> None:
        chosen = np.flatnonzero(drawn.jitter)
        factor = torch.from_numpy(getattr(drawn, jitter)[chosen]).float().view(-1, 1, 1, 1)
        getattr(colors, jitter)(levels[torch.from_numpy(chosen)], factor)

    neither = replace(drawn, jitter=never, gray=never, equalize=never, solarize=np.full(n, 256.0), blur=np.zeros(n))
    parts: dict[str, Callable[[], object]] = {
        "draw parameters": parameters,
        "crop, flip, resize": cut,
        **{jitter: partial(alone, jitter) for jitter in colors.JITTERS},
        "render without colors": lambda: render(images, neither, policy, kind),
        "render without blur": lambda: render(images, replace(drawn, blur=np.zeros(n)), policy, kind),
        "render": lambda: render(images, drawn, policy, kind),
    }
    medians = [statistics.median(side) / n * 1e6 for side in in_turns(list(parts.values()), repeats)]
    times = dict(zip(parts, medians, strict=True))
    return [
        {"recipe": name, "kind": kind, "part": part, "us_per_view": time_, "share_of_render": time_ / times["render"]}
        for part, time_ in times.items()
    ]


def operations(images: np.ndarray, repeats: int) -> list[Row]:
    """Microseconds per 32-pixel image of each operation and of the library's own.

    `one factor for all` applies the library's tensor operation to the batch as a whole: it cannot render views, whose
    factors differ, but bounds what batching the library would give.
    """
    n = len(images)
    batch = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
    levels, pillow = batch.float(), [Image.fromarray(image) for image in images]
    factor = torch.full((n, 1, 1, 1), 1.3)
    corner, extent, shape = (np.full((n, 2), side) for side in (2, 27, 32))
    resize = [2, 2, 27, 27, [32, 32]]
    weights = torch.from_numpy(blur.gaussian_weights(np.full(n, 1.3), 31))

    def on_copy(operation: Callable[..., object], *values: Any) -> Callable[[], object]:
        return lambda: operation(levels.clone(), *values)

    cases: list[tuple[str, Callable[[], object], Callable[[Any], object]]] = [
        (
            "crop and resize",
            lambda: crops.resize(images, corner, extent, shape, 32),
            lambda image: F.resized_crop(image, *resize, antialias=True),
        ),
        ("brightness", on_copy(colors.brightness, factor), lambda image: F.adjust_brightness(image, 1.3)),
        ("contrast", on_copy(colors.contrast, factor), lambda image: F.adjust_contrast(image, 1.3)),
        ("saturation", on_copy(colors.saturation, factor), lambda image: F.adjust_saturation(image, 1.3)),
        ("hue", on_copy(colors.hue, factor - 1.2), lambda image: F.adjust_hue(image, 0.1)),
        ("solarize", on_copy(colors.solarize, factor * 100), lambda image: F.solarize(image, 130.0)),
        ("equalize", on_copy(colors.equalize), F.equalize),
        ("gray", on_copy(colors.gray), lambda image: F.rgb_to_grayscale(image, 3)),
        ("blur", on_copy(blur.blur, weights), lambda image: F.gaussian_blur(image, 17, 1.3)),
    ]
    rows = []
    for name, ours, library in cases:
        sides: list[Callable[[], object]] = [
            ours,
            partial(library, batch),
            partial(one_by_one, library, batch),
            partial(one_by_one, library, pillow),
        ]
        medians = [statistics.median(side) / n * 1e6 for side in in_turns(sides, max(3, repeats // 3))]
        labels = ("ours", "one factor for all", "tensors one by one", "pillow one by one")
        rows.append({"operation": name} | dict(zip(labels, medians, strict=True)))
    return rows


def one_by_one(operation: Callable[[Any], object], images: Iterable[Any]) -> None:
    for image in images:
        operation(image)


def in_turns(sides: list[Callable[[], object]], repeats: int) -> list[list[float]]:
    """Processor seconds of each side in each turn; taking turns spreads a busy machine's noise over all sides."""
    seconds: list[list[float]] = [[] for _ in sides]
    for side in sides:
        side()
    for _ in range(repeats):
        for side, taken in zip(sides, seconds, strict=True):
            start = time.process_time()
            side()
            taken.append(time.process_time() - start)
    return seconds


def quantiles(values: list[float]) -> dict[str, float]:
    return {f"p{percent}": float(np.percentile(values, percent)) for percent in (10, 50, 90)}


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def show(report: Row) -> None:
    console = Console()
    console.print(f"One thread. Images: {report['images']['cifar']}; {report['images']['imagenet']}.")
    spread = "{p50:,.0f} ({p10:,.0f} to {p90:,.0f})".format_map
    recipes = Table(
        "recipe, 2 large + 2 small views", "ours, images/s", "per image, images/s", "ratio", title="Recipes"
    )
    for row in report["recipes"]:
        ratio = "{p50:.1f} ({p10:.1f} to {p90:.1f})".format_map(row["ratio"])
        recipes.add_row(row["recipe"], spread(row["ours"]), spread(row["pillow"]), ratio)
    parts = Table("recipe", "kind", "part", "us per view", "of render", title="Where the time goes (each part alone)")
    for row in report["breakdown"]:
        share = f"{row['share_of_render']:.0%}"
        parts.add_row(row["recipe"], row["kind"], row["part"], f"{row['us_per_view']:.1f}", share)
    names = [name for name in report["operations"][0] if name != "operation"]
    single = Table("operation, us per 32 px image", *names, title="Against the library's operations")
    for row in report["operations"]:
        single.add_row(row["operation"], *(f"{row[name]:.1f}" for name in names))
    for table in (recipes, parts, single):
        console.print(table)


if __name__ == "__main__":
    raise SystemExit(main())
