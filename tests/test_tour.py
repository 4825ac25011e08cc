"""The notebook docs/tour.ipynb runs from top to bottom, and shows what it printed when it did."""

import os
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

TOUR = Path(__file__).parents[1] / "docs" / "tour.ipynb"


@pytest.fixture
def notebook():
    return nbformat.read(TOUR, as_version=4)


def test_the_notebook_runs(notebook, tmp_path, monkeypatch):
    training = next(cell for cell in notebook.cells if "nncsl train" in cell.source)
    assert "--epochs 10" in training.source
    training.source = training.source.replace("--epochs 10", "--epochs 1")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert (tmp_path / "runs" / "tour" / "report.html").exists()


def test_what_it_shows_is_complete(notebook):
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    pictures = [output for cell in cells for output in cell.outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == 3
    assert TOUR.stat().st_size < 400_000
