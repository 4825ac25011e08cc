"""What README and docs tell people to type works: Python blocks run, commands and links exist."""

import re
import subprocess
from pathlib import Path

import pytest
import torch

from nncsl.cli import build_parser

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])


def commands():
    """Every ``nncsl ...`` line of an indented or fenced block, without its comment."""
    for page in PAGES:
        for line in re.findall(r"^    (nncsl .+)$", page.read_text(), flags=re.MULTILINE):
            yield pytest.param(line.split("#")[0].split()[1:], id=f"{page.name}: {line.split('#')[0].strip()}")


@pytest.mark.parametrize("arguments", list(commands()))
def test_commands_in_the_docs_are_ones_that_exist(arguments):
    assert callable(build_parser().parse_args(arguments).run)


def test_readme_python_runs(tmp_path, monkeypatch):
    """The blocks of the README one after the other, with the tensors they speak of."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert len(blocks) == 2
    torch.manual_seed(0)
    names = {
        "queries": torch.randn(8, 128),
        "supports": torch.randn(20, 128),
        "teacher_queries": torch.randn(8, 128),
        "teacher_supports": torch.randn(20, 128),
        "labels": torch.arange(20) % 10,
        "ids": torch.arange(20),
        "slots": torch.zeros(20, dtype=torch.int64),
        "features": torch.randn(20, 128),
    }
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert names["probabilities"].shape == (8, 10) and names["loss"].isfinite()
    assert names["vectors"].shape == (20, 128)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


def test_make_targets_of_the_readme_exist():
    text = (ROOT / "README.md").read_text()
    for target in set(re.findall(r"^    make (\w+)", text, flags=re.MULTILINE)):
        shown = subprocess.run(["make", "-n", "VENV=absent", target], cwd=ROOT, capture_output=True, text=True)
        assert shown.returncode == 0, shown.stderr
