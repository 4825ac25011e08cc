"""``nncsl predict``: what a run says of images."""

import argparse
import sys
from pathlib import Path
from typing import Any

from nncsl.cli.settings import a_number, a_path, an_image, command
from nncsl.errors import UserError


def add(commands: Any) -> None:
    """Declares the command."""
    parser = command(
        commands,
        "predict",
        _predict,
        "name the class of images, by a run's own prediction or by the remembered images nearest to them",
        "nncsl predict runs/digits-nncsl-seed0 digits/7.png",
        "nncsl predict runs/digits-nncsl-seed0 digits --top 1 --csv predictions.csv",
        "nncsl predict runs/digits-nncsl-seed0 digits --by neighbors --sheet neighbors.png",
    )
    parser.add_argument("run_folder", type=a_path, metavar="RUN", help="the folder of a run")
    parser.add_argument(
        "images", nargs="+", type=an_image, metavar="IMAGE", help="image files, and folders that are walked down"
    )
    parser.add_argument("--top", type=a_number, default=3, metavar="K", help="how many classes to name (default: 3)")
    parser.add_argument("--csv", type=a_path, metavar="FILE", help="also write a table")
    parser.add_argument(
        "--by",
        choices=("head", "neighbors"),
        default="head",
        help="head (default): the method's own prediction, the linear head for most methods; neighbors: soft nearest "
        "neighbors among the remembered images, which are named",
    )
    parser.add_argument(
        "--sheet", type=a_path, metavar="FILE", help="with --by neighbors: a PNG of images and what decided them"
    )
    parser.add_argument("--device", default="auto", help="auto (default), cpu or cuda")


def _predict(arguments: argparse.Namespace) -> int:
    if arguments.top < 1:
        raise UserError(f"--top {arguments.top}: expected 1 or more classes")
    if arguments.sheet and arguments.by != "neighbors":
        raise UserError("--sheet shows the neighbors that decided: add --by neighbors")
    from nncsl.data.folders import SUFFIXES
    from nncsl.use import Model, many, pictures, sheet, table

    files = pictures.listed(map(Path, arguments.images))
    if not files:
        raise UserError(f"{' '.join(arguments.images)}: no image in there; expected {', '.join(sorted(SUFFIXES))}")
    model = Model.open(arguments.run_folder, arguments.device)
    if arguments.by == "head" and model.decides_by != "the head":
        print(f"nncsl: {model.run.config.method} decides by {model.decides_by}", file=sys.stderr)
    cells: list[dict[str, Any]] = []
    shown: list[sheet.Row] = []
    unreadable = 0
    for batch in many.predicted(model, files, arguments.by):
        for problem in batch.problems:
            print(f"nncsl: {problem}", file=sys.stderr)
        for line in table.lines(batch.files, batch.found, arguments.top):
            print(line)
        unreadable += len(batch.problems)
        cells += table.rows(batch.files, batch.found, arguments.top) if arguments.csv else []
        shown += sheet.rows(batch) if arguments.sheet and len(shown) < sheet.MOST else []
    if arguments.csv:
        table.write(Path(arguments.csv), cells)
    if shown:
        sheet.write(Path(arguments.sheet), model, shown)
    if arguments.sheet and len(files) - unreadable > sheet.MOST:
        print(f"nncsl: {arguments.sheet} shows the first {sheet.MOST} images", file=sys.stderr)
    if unreadable:
        print(f"nncsl: {unreadable} of {len(files)} files can't be read; the others are predicted", file=sys.stderr)
    return 1 if unreadable else 0
