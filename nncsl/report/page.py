"""The page around the sections: one file that needs nothing else."""

from importlib import resources

from nncsl.report.html import tag, text
from nncsl.version import __version__


def page(title: str, header: str, sections: list[str]) -> str:
    """A whole HTML document. header: markup of the top; sections: markup, empty ones are left out."""
    head = [
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        '<link rel="icon" href="data:,">',  # or the browser asks the network for one
        tag("title", text(title)),
        f"<style>\n{_resource('style.css')}</style>",
    ]
    footer = tag("footer", f"nncsl {text(__version__)}")
    body = tag("main", tag("header", header), *sections, footer) + f"<script>\n{_resource('script.js')}</script>"
    return f'<!doctype html>\n<html lang="en">\n<head>\n{"".join(head)}\n</head>\n<body>\n{body}\n</body>\n</html>\n'


def tile(label: str, value: str, note: str = "", *, name: str, number: float | None = None) -> str:
    """A headline figure."""
    parts = [tag("dt", text(label)), tag("dd", tag("strong", text(value)), tag("span", note) if note else "")]
    return tag("div", *parts, class_="tile", data_name=name, data_value=number)


def _resource(name: str) -> str:
    return (resources.files("nncsl.report") / name).read_text()
