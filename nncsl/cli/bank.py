"""``nncsl bank``: look into a feature bank, check it, take its rows out, ask for neighbors."""

import argparse
import json
from pathlib import Path
from typing import Any

from nncsl.cli.settings import a_number, a_path, command, group


def add(commands: Any) -> None:
    """Declares the command and its four parts."""
    parts = group(
        commands,
        "bank",
        "look into a feature bank, check it, export it, search it",
        "nncsl bank info runs/digits-nncsl-seed0",
        "nncsl bank verify runs/digits-nncsl-seed0",
    )
    info = _part(
        parts,
        "info",
        _info,
        "what a bank holds: teacher, task, images, slots, roles, codec, size",
        "nncsl bank info runs/digits-nncsl-seed0",
        "nncsl bank info runs/digits-nncsl-seed0/bank --json",
    )
    info.add_argument("--json", action="store_true", help="for programs")
    info.add_argument(
        "--run",
        dest="of_run",
        type=a_path,
        metavar="DIR",
        help="the run it belongs to, if it does not lie in its folder",
    )
    _part(
        parts,
        "verify",
        _verify,
        "compare every file of a bank with its checksum; exit code 3 when one is damaged",
        "nncsl bank verify runs/digits-nncsl-seed0",
    )
    export = _part(
        parts,
        "export",
        _export,
        "write a bank's ids, slots, roles, labels and features (float32) to an .npz file",
        "nncsl bank export runs/digits-nncsl-seed0 --out features.npz",
    )
    export.add_argument(
        "--out", "-o", type=a_path, metavar="FILE", default="bank.npz", help="where to (default: bank.npz)"
    )
    _generation(export)
    query = _part(
        parts,
        "query",
        _query,
        "find the images nearest to one, as a list and a PNG sheet",
        "nncsl bank query runs/digits-nncsl-seed0 7 -k 11 --out neighbors.png",
        "nncsl bank query runs/digits-nncsl-seed0/bank 7 --no-image --json",
    )
    query.add_argument("image", type=a_number, metavar="ID", help="number of a training image in the bank")
    query.add_argument("-k", type=a_number, default=11, metavar="K", help="how many neighbors (default: 11)")
    query.add_argument(
        "--slot", type=a_number, metavar="SLOT", help="which view of the image asks (default: its first)"
    )
    query.add_argument("--role", choices=("unlabeled", "support", "replay"), help="search among these rows only")
    query.add_argument(
        "--out", "-o", type=a_path, metavar="FILE", default="neighbors.png", help="the sheet (default: neighbors.png)"
    )
    query.add_argument("--no-image", action="store_true", help="the list only; needs no data set")
    query.add_argument(
        "--run",
        dest="of_run",
        type=a_path,
        metavar="DIR",
        help="the run whose images these are, if the bank is not in its folder",
    )
    query.add_argument("--json", action="store_true", help="the list for programs")
    _generation(query)


def _part(parts: Any, name: str, run: Any, summary: str, *examples: str) -> argparse.ArgumentParser:
    parser = command(parts, name, run, summary, *examples)
    parser.add_argument("path", type=a_path, metavar="PATH", help="a bank's directory, or the folder of a run")
    return parser


def _generation(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--generation", type=a_number, metavar="N", help="another than the current one")


def _place(arguments: argparse.Namespace) -> Any:
    from nncsl.banks.place import find

    run = getattr(arguments, "of_run", None)
    return find(Path(arguments.path), Path(run) if run else None)


def _info(arguments: argparse.Namespace) -> int:
    from nncsl.banks.info import info, lines

    found = info(_place(arguments))
    print(json.dumps(found, indent=2) if arguments.json else "\n".join(lines(found)))
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from nncsl.banks.place import opened

    place = _place(arguments)
    with opened(place, verify=True) as bank:
        shards = [shard for generation in bank.generations for shard in generation.shards]
        total = sum(shard.bytes for shard in shards)
        print(f"{place.bank}: intact ({len(shards)} shards, {total:,} bytes; generations: {len(bank.generations)})")
    return 0


def _export(arguments: argparse.Namespace) -> int:
    from nncsl.banks.export import export

    rows = export(_place(arguments), Path(arguments.out), arguments.generation)
    print(f"{arguments.out}: {rows} rows")
    return 0


def _query(arguments: argparse.Namespace) -> int:
    from nncsl.banks import query, sheet

    place = _place(arguments)
    source = None if arguments.no_image else sheet.open_images(place)
    answer = query.query(
        place,
        arguments.image,
        arguments.k,
        slot=arguments.slot,
        role=arguments.role,
        generation=arguments.generation,
    )
    if source is not None:
        sheet.check_images(answer, source)
        sheet.write(answer, source, Path(arguments.out))
    names = [sheet.class_name(one, source) for one in (answer.query, *answer.neighbors)]
    if arguments.json:
        print(json.dumps(query.as_json(answer, names), indent=2))
        return 0
    print(f"image {answer.query.image} ({' '.join([names[0], answer.query.role]).strip()}), by {answer.searched_by}")
    print(f"{'image':>10} {'similarity':>10} {'slot':>5} {'role':<10} class")
    for one, name in zip(answer.neighbors, names[1:], strict=True):
        print(f"{one.image:>10} {one.similarity:>10.4f} {one.slot:>5} {one.role:<10} {name or '-'}")
    if source is not None:
        print(arguments.out)
    return 0
