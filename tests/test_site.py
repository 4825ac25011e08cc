"""The pages as a site: `make docs` builds it without a warning, and every link in it leads somewhere."""

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest

ROOT = Path(__file__).parents[1]


class Page(HTMLParser):
    """Where a page's links and pictures lead, and the names of its places."""

    def __init__(self, path):
        super().__init__()
        self.targets, self.places = set(), set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.places |= {found[key] for key in ("id", "name") if key in found}
        key = {"a": "href", "link": "href", "img": "src", "script": "src"}.get(tag)
        if found.get(key):
            self.targets.add(found[key])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(
        [*command, "--config-file", "docs/site/mkdocs.yml"],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return {path.relative_to(folder).as_posix(): Page(path) for path in folder.rglob("*.html")}, folder


def test_every_page_of_the_project_is_in_the_site(site):
    pages, _ = site
    written = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert written <= {Path(name).stem for name in pages}
    assert {"index.html", "REPRODUCIBILITY.html", "CHANGELOG.html", "api-kernels.html"} <= pages.keys()


def test_every_link_leads_somewhere(site):
    pages, folder = site
    lost = []
    for name, page in pages.items():
        for target in page.targets if name != "404.html" else ():  # its links begin at the server's root
            address, place = urldefrag(target)
            if urlsplit(address).scheme:
                continue
            path = ((folder / name).parent / unquote(address)).resolve() if address else folder / name
            inside = path.relative_to(folder.resolve()).as_posix() if address else name
            known = pages.get(inside)
            if not path.exists() or (place and known is not None and place not in known.places):
                lost.append(f"{name}: {target}")
    assert not lost


def test_public_functions_are_shown_with_their_parameters(site):
    _, folder = site
    text = (folder / "api-kernels.html").read_text()
    for name in ("snn", "nnd_loss", "snn_loss", "neighbors", "prepare"):
        assert f'id="nncsl.kernels.{name}"' in text
    assert "<li>smoothing: a, turns labels" in text.replace("<li>\n<p>", "<li>")
