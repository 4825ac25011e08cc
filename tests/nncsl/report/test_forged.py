"""What somebody else wrote into a run's folder does not act in a reader's browser."""

import json
import re
import shutil

import numpy as np
import pytest

from nncsl import report
from nncsl.errors import UserError
from nncsl.report import views

MARKUP = '"><img src=http://evil.example/x onerror=alert(1)><script>alert(1)</script>'
ADDRESS = re.compile(r"""(?:src|href)=(?!["'](?:data:image/png;base64,|data:,|#))""")


@pytest.fixture
def folder(runs, tmp_path):
    return shutil.copytree(runs["nncsl-0"], tmp_path / "run")


@pytest.mark.parametrize(
    "kept",
    [
        {"large": ["http://evil.example/x.png"]},
        {"large": ["data:image/svg+xml,<svg onload=alert(1)>"]},
        {"large": ['data:image/png;base64,AA" onerror="alert(1)']},
        {"<script>alert(1)</script>": ["javascript:alert(1)"]},
        {"large": 7},
        [1],
    ],
)
def test_views_that_nncsl_did_not_draw_are_drawn_anew(folder, kept):
    (folder / "snapshots" / "views.json").write_text(json.dumps(kept))
    page = report.write([folder]).read_text()
    assert "evil" not in page and "alert(1)" not in page and not ADDRESS.search(page)
    assert page.count("data:image/png") >= 8
    assert json.loads((folder / "snapshots" / "views.json").read_text()) != kept


def test_only_images_inside_the_page_are_shown():
    assert "<img" not in views.sheet({"a": ["http://evil.example/x.png", "data:text/html,x"]})
    assert "<img" in views.sheet({"a": [views.data_uri(np.zeros((2, 2, 3), np.uint8))]})


def test_names_are_text(folder):
    path = folder / "snapshots" / "task-5.npz"
    with np.load(path) as saved:
        arrays = {name: saved[name] for name in saved.files}
    np.savez(path, **(arrays | {"class_names": np.array([MARKUP] * 10)}))
    (folder / "command.txt").write_text(MARKUP)
    (folder / "SHA256SUMS").unlink(missing_ok=True)  # whoever forges files can make new checksums as well
    page = report.write([folder]).read_text()
    assert "&lt;script&gt;" in page and "<script>alert" not in page and "<img src=http" not in page


@pytest.mark.parametrize("name", ["tasks.json", "summary.json", "metrics.jsonl"])
@pytest.mark.parametrize(
    "content", ["7\n", "[]\n", '{"tasks": [{"classes": "x"}]}\n', "[" * 9999 + "\n", '{"kind": 1}\n']
)
def test_files_of_another_shape_are_named(folder, name, content):
    (folder / name).write_text(content)
    with pytest.raises(UserError, match=name):
        report.write([folder])
