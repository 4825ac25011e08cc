"""Matrices as tables with shaded cells: the numbers stay text."""

from collections.abc import Sequence

from rich.cells import cell_len

from nncsl.report.html import tag, text

_LIGHT_TEXT_FROM = 0.72  # of the shade's strength: from here on white reads better than black
_FITS = 6  # letters above a column; longer names are turned


def heat_table(
    values: Sequence[Sequence[float | None]],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    corner: str,
    name: str,
    highest: Sequence[float],
    decimals: int = 1,
) -> str:
    """values [r, c], None for cells without one; highest [r]: the value of full shade in each row."""
    upright = None if max(map(cell_len, columns)) <= _FITS else "upright"
    titles = [tag("th", tag("span", text(c)), scope="col", class_=upright) for c in columns]
    head = tag("tr", tag("th", text(corner), scope="col"), *titles)
    body = []
    for line, row, most in zip(values, rows, highest, strict=True):
        cells = [_cell(value, most, decimals) for value in line]
        body.append(tag("tr", tag("th", text(row), scope="row"), *cells))
    whole = tag("table", tag("thead", head), tag("tbody", *body), class_="heat", data_name=name)
    return tag("div", whole, class_="scroll")


def _cell(value: float | None, most: float, decimals: int) -> str:
    if value is None:
        return tag("td", class_="none")
    share = min(1.0, max(0.0, value / most)) if most else 0.0
    kind = "strong" if share >= _LIGHT_TEXT_FROM else None
    return tag("td", f"{value:.{decimals}f}", class_=kind, style=f"--v:{share:.3f}", data_value=f"{value:.6g}")
