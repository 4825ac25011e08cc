"""Every setting in words: for ``nncsl config --explain`` and for docs/settings.md, both from the one table.

``python -m nncsl.config.explain`` writes docs/settings.md anew; a test compares the page with the table.
"""

import dataclasses
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from nncsl.config import Config, build, load, presets
from nncsl.config.ranges import Setting, rows_of
from nncsl.errors import ConfigError, suggestion

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
_HEAD = """# Settings

Every setting, from the table in `nncsl/config/table.py` by which values are checked before anything starts; written by
`python -m nncsl.config.explain`. Any of them is changed by `--set KEY=VALUE`; `nncsl config --explain KEY` prints a
row, `nncsl config` what a run would use. *Default* is what all presets have that are not named beside it. A method's
own settings (`own.*`) may have other values on some data sets: `nncsl config --method NAME --preset PRESET` shows them.
"""


class Row(NamedTuple):
    """A setting as it is explained."""

    key: str
    meaning: str
    unit: str
    range: str
    default: str


def explained() -> dict[str, list[Row]]:
    """Return all settings by part: the common ones, those of views and network, each method's own."""
    from nncsl.methods import METHODS

    values = {name: _flat(build.plain(load(name))) for name in presets()}
    found = {"All runs": list(_rows(Config, "", values))}
    for name, method in METHODS.items():
        if dataclasses.fields(method.Settings):
            own = _flat({"own": build.plain(load("digits", [{"method": name}]).own)})
            found[f"`--method {name}`"] = list(_rows(method.Settings, "own.", {"digits": own}))
    return found


def lines(key: str | None) -> list[str]:
    """Return what ``--explain`` prints: of one setting, of all whose key begins with ``key.``, or of all."""
    parts = explained()
    if key is None:
        return [line for title, rows in parts.items() for line in (title.replace("`", ""), *map(_line, rows), "")]
    found = [
        (title, row) for title, rows in parts.items() for row in rows if row.key == key or row.key.startswith(f"{key}.")
    ]
    if not found:
        known = list(dict.fromkeys(row.key for rows in parts.values() for row in rows))
        near = suggestion(key, known) or "; `nncsl config --explain` lists them all"
        raise ConfigError(f"--explain {key}: no setting of that name{near}")
    return [_line(row) + (f" ({title})" if row.key.startswith("own.") else "").replace("`", "") for title, row in found]


def page() -> str:
    """Return docs/settings.md."""
    text = _HEAD
    for title, rows in explained().items():
        text += f"\n## {title}\n\n| setting | meaning | unit | range | default |\n|---|---|---|---|---|\n"
        text += "".join(f"| `{row.key}` | {' | '.join(map(_cell, row[1:]))} |\n" for row in rows)
    return text


def _rows(settings: type, prefix: str, values: dict[str, dict[str, Any]]) -> Iterator[Row]:
    """The rows of a dataclass's settings; values: by preset and key."""
    hints, table = get_type_hints(settings), rows_of(settings)
    for field in dataclasses.fields(settings):
        key, hint = prefix + field.name, _plain_hint(hints[field.name])
        if field.name not in table:
            raise KeyError(
                f"{settings.__name__}.{field.name} is not in nncsl/config/table.py: add its meaning and range"
            )
        if dataclasses.is_dataclass(hint):
            yield from _rows(hint, f"{key}.", values)  # type: ignore[arg-type]
        elif get_origin(hint) is not dict:
            row = table[field.name]
            default = _default(field, {name: each[key] for name, each in values.items()})
            yield Row(key, row.meaning, row.unit, _range(row, hint), default)


def _plain_hint(hint: Any) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        return next(each for each in get_args(hint) if each is not type(None))
    return hint


def _range(row: Setting, hint: Any) -> str:
    if get_origin(hint) is Literal:
        return ", ".join(map(str, get_args(hint)))
    if get_origin(hint) is tuple:
        return f"each {row.range}"
    if hint is bool:
        return "true, false"
    return str(row.range) if row.range else "text"


def _default(field: Any, by_preset: dict[str, Any]) -> str:
    """What all presets share, or the dataclass's own default, and what differs from it."""
    shown = {name: _shown(value) for name, value in by_preset.items()}
    if len(set(shown.values())) == 1:
        return next(iter(shown.values()))
    usual = None if field.default is dataclasses.MISSING else _shown(build.plain(field.default))
    others = "; ".join(f"{name}: {value}" for name, value in shown.items() if value != usual)
    return others if usual is None else f"{usual}; {others}"


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found


def _line(row: Row) -> str:
    unit = f" {row.unit}" if row.unit else ""
    return f"{row.key}: {row.meaning}; {row.range}{unit}; default {row.default}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    from nncsl.files import write_text

    write_text(PAGE, page())
