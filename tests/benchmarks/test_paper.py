"""docs/paper.md lists every number of the paper's tables, and its commands are ones that this program takes."""

import re
import shlex

import pytest

from nncsl import cli
from nncsl.benchmarks import paper
from nncsl.cli.settings import configuration
from nncsl.report.paper import rows


def test_every_number_is_on_the_page():
    shown = [re.split(r" ?\| ?", line)[1:-1] for line in paper.PAGE.read_text().splitlines() if line.startswith("| ")]
    shown = [cells[:6] for cells in shown if cells[0] in ("cifar10", "cifar100", "imagenet100")]
    expected = []
    for row in rows():
        value = row["value"] + (f" ± {row['std']}" if row["std"] else "")
        setting = [row[key] for key in ("dataset", "method", "memory", "labels")]
        expected.append([*setting, row["metric"].replace("_", " "), value])
    assert sorted(shown) == sorted(expected)


def test_every_command_is_taken():
    commands = {line.command.strip("`") for line in paper.lines() if line.settings is not None}
    assert len(commands) > 100
    for command in sorted(commands):
        words = shlex.split(command.replace(" --data-dir DATA", ""))[1:]
        arguments = cli.build_parser().parse_args(words)
        configuration(arguments)


@pytest.mark.parametrize(("labels", "protocol"), [("0.8%", "cifar10-small"), ("25%", "")])
def test_what_was_recorded_stands_beside_it(labels, protocol):
    (line,) = [
        line
        for line in paper.lines()
        if line.row["table"] == "main"
        and all(
            line.row[k] == v
            for k, v in {"dataset": "cifar10", "method": "ccic", "memory": "500", "labels": labels}.items()
        )
    ]
    seen, where = paper.seen_here(line)
    assert bool(re.fullmatch(r"\d+\.\d ± \d+\.\d \(\d+\)", seen)) == bool(protocol) and where == protocol


@pytest.mark.parametrize(
    ("table", "method", "memory", "campaign"),
    [("ablation", "paws", "500", "cifar10-quick"), ("buffer", "nncsl", "50", "cifar10-ablation")],
)
def test_numbers_of_other_tables_are_found_in_quick_campaigns(table, method, memory, campaign):
    """The main table's PAWS is the ablation's; what the memory's size is worth has a campaign of its own."""
    wanted = {"table": table, "dataset": "cifar10", "method": method, "memory": memory}
    (line,) = [line for line in paper.lines() if wanted.items() <= line.row.items()]
    name, run = paper._quick(line.row)
    assert name == campaign and run in paper.campaign.read(name).runs


def test_the_page_has_what_is_recorded():
    text = paper.PAGE.read_text().splitlines()
    for line in paper.lines():
        if line.row["dataset"] == "cifar10" and line.row["labels"]:
            seen, protocol = paper.seen_here(line)
            here = f"{seen} `{protocol}`" if seen else paper.NOTHING_HERE
            found = [row for row in text if line.command in row and f" | {line.row['value']}" in row]
            assert found and all(f" | {here} | " in row for row in found), "run python -m nncsl.benchmarks.paper"


def test_hours_grow_with_the_work():
    by_method = {
        line.row["method"]: float(paper.hours(line).split(" / ")[0])
        for line in paper.lines()
        if line.row["table"] == "main" and line.row["dataset"] == "cifar10" and line.row["labels"] == "0.8%"
        and line.row["method"] in ("finetune", "er", "csl", "nncsl")
    }  # fmt: skip
    assert by_method["finetune"] < by_method["er"] < by_method["csl"] == by_method["nncsl"]
