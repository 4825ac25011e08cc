"""What checksums cost: images of a cache and a run's checkpoint, with them and without, side by side.

``python -m nncsl.benchmarks.checksums`` prints seconds of the processor, the best of a few rounds in turns: waiting for
the disk or for other processes does not count.
"""

import argparse
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from nncsl import files
from nncsl.data.images import CheckedImages, PackedImages
from nncsl.record import checkpoint, checksums

SIDE, IMAGES, BATCH = 146, 2000, 100  # as a cache has them for views of 128 pixels
WEIGHTS = 22_000_000  # of fp32: about a ResNet18 with its momentum


def images(checked: bool) -> Callable[[], None]:
    """Return what reads every image once, in batches."""
    pixels = np.random.default_rng(0).integers(0, 256, (IMAGES, SIDE, SIDE, 3), dtype=np.uint8)
    offsets, sizes = np.arange(IMAGES) * pixels[0].size, np.full((IMAGES, 2), SIDE)
    sums = np.array([zlib.crc32(image.data) for image in pixels], np.uint32)

    def read() -> None:
        arguments = pixels.reshape(-1), offsets, sizes, 3
        found = CheckedImages(*arguments, checksums=sums, place=Path()) if checked else PackedImages(*arguments)
        for start in range(0, IMAGES, BATCH):
            found.gather(np.arange(start, start + BATCH))

    return read


def saving(folder: Path, checked: bool) -> Callable[[], None]:
    """Return what saves a checkpoint in a folder with a list of checksums, or writes the same file and nothing else."""
    path, state = folder / "checkpoint" / "state.pt", {"format": checkpoint.FORMAT, "weights": torch.zeros(WEIGHTS)}
    if not checked:
        return lambda: files.write_file(path, lambda file: torch.save(state, file), size=4 * WEIGHTS)
    checksums.begin(folder)
    return lambda: checkpoint.save(path, state)


def loading(folder: Path, checked: bool) -> Callable[[], object]:
    """Return what loads it as a run does, or as torch alone would."""
    path = folder / "checkpoint" / "state.pt"
    return lambda: checkpoint.load(path) if checked else torch.load(path, weights_only=True)


def seconds(work: Callable[[], object]) -> float:
    """Return the processor's seconds that it takes."""
    began = time.process_time()
    work()
    return time.process_time() - began


def main(argv: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m nncsl.benchmarks.checksums", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(argv)
    print("what,without,with,ratio")
    with tempfile.TemporaryDirectory(prefix="nncsl-checksums-") as place:
        folders = [Path(place) / name for name in ("without", "with")]
        for folder in folders:
            folder.mkdir()
        pairs: dict[str, list[Callable[[], object]]] = {
            f"{IMAGES} images of {SIDE}x{SIDE}": [images(checked) for checked in (False, True)],
            "saving a checkpoint of 88 MB": [saving(folder, folder.name == "with") for folder in folders],
            "loading it": [loading(folder, folder.name == "with") for folder in folders],
        }
        for what, pair in pairs.items():
            rounds = [[seconds(work) for work in pair] for _ in range(options.rounds)]
            without, checked = (min(each) for each in zip(*rounds, strict=True))
            print(f"{what},{without:.3f},{checked:.3f},{checked / without:.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
