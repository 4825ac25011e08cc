"""Make a site of pages that are written to be read in the repository: links lead to the same thing in the site.

The pages at the project's top level join those of docs/, README.md as the first. A link to a picture or a record
takes that file along; one to code, which is not in the site, becomes its name.
"""

import importlib
import os
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
TOP = {"README.md": "index.md"}
TOP |= {name: name for name in ("REPRODUCIBILITY.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE")}
TAKEN = {".png", ".svg", ".csv", ".json", ".jsonl", ".cff"}
API = {"api-kernels.md": "nncsl.kernels", "api-featurebank.md": "nncsl.featurebank"}
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]*)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the top level's pages, the pages of public functions, and the files that pages link to."""
    for name, place in TOP.items():
        files.append(File.generated(config, place, content=(ROOT / name).read_text()))
    for name, package in API.items():
        names = "\n\n".join(f"::: {package}.{member}" for member in importlib.import_module(package).__all__)
        files.append(File.generated(config, name, content=f"# {package}\n\n{names}\n"))
    for page in list(files.documentation_pages()):
        for _, _, target, _ in _LINK.findall(page.content_string):
            found = _origin(page.src_uri, target)
            if found and found.suffix in TAKEN and files.get_file_from_path(_place(found)) is None:
                files.append(File.generated(config, _place(found), abs_src_path=str(found)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to where their targets stand in the site."""

    def lead(link: re.Match[str]) -> str:
        mark, text, target, anchor = link.group(1), link.group(2), link.group(3), link.group(4) or ""
        found = _origin(page.file.src_uri, target)
        if found is None:
            return link.group()
        place = _place(found)
        if files.get_file_from_path(place) is None:
            return text if text.startswith("`") else f"{text} (`{found.relative_to(ROOT)}`)"
        here = PurePosixPath(page.file.src_uri).parent
        return f"{mark}[{text}]({os.path.relpath(place, here)}{anchor})"

    return _LINK.sub(lead, markdown)


def _origin(page: str, target: str) -> Path | None:
    """The file of the project that a page's link means; None: another address, or a place in the page itself."""
    if not target or ":" in target or page in API:
        return None
    folder = ROOT if page in TOP.values() else (ROOT / "docs" / page).parent
    return Path(os.path.normpath(folder / target))


def _place(file: Path) -> str:
    """Where a file of the project stands in the site."""
    inside = file.relative_to(ROOT).as_posix()
    return TOP.get(inside, inside.removeprefix("docs/"))
