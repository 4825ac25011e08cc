"""Plain mappings (yaml, ``key=value`` flags) to frozen dataclasses and back, with every mistake named."""

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from nncsl.config import ranges
from nncsl.errors import ConfigError, shown, suggestion

T = TypeVar("T")
_DEEPEST = 4  # parts of a key: views.large.size has three


def typed(cls: type[T], values: Mapping[str, Any], prefix: str = "") -> T:
    """An instance of the dataclass ``cls`` from a nested mapping; unknown keys and wrong types are ConfigErrors."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{prefix.rstrip('.') or 'config'}: expected a mapping of settings, got {shown(values)}")
    known = {field.name: field for field in fields(cls)}  # type: ignore[arg-type]
    hints = get_type_hints(cls)
    for key in values:
        if key not in known:
            near = suggestion(key, known, prefix) or "; `nncsl config --explain` lists them all"
            raise ConfigError(f"unknown setting {prefix}{key!s:.80}{near}")
    missing = [name for name, f in known.items() if name not in values and f.default is f.default_factory is MISSING]
    if missing:
        raise ConfigError(f"setting {prefix}{missing[0]} is missing and has no default")
    converted = {key: _convert(value, hints[key], prefix + key) for key, value in values.items()}
    rows = ranges.rows_of(cls)
    for key, value in converted.items():
        ranges.check_value(rows.get(key), value, prefix + key)
    try:
        return cls(**converted)
    except ConfigError:
        raise
    except ValueError as error:  # the dataclass judged its own values
        raise ConfigError(f"{prefix.rstrip('.') or 'config'}: {error}") from error


def plain(value: Any) -> Any:
    """The inverse of :func:`typed`: dataclasses to dicts, tuples to lists, ready for yaml or json."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value


def merge(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``override`` on top; nested mappings are merged, everything else is replaced."""
    merged = dict(base)
    for key, value in override.items():
        nested = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if nested else value
    return merged


def parse_assignment(text: str) -> dict[str, Any]:
    """``"network.width=16"`` to ``{"network": {"width": 16}}``; the value is read as yaml."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {shown(text)}: expected key=value, e.g. --set epochs=10 or --set network.width=16")
    parts = key.strip().split(".")
    if len(parts) > _DEEPEST:
        raise ConfigError(f"--set {shown(text)}: expected a key of at most {_DEEPEST} parts, got {len(parts)}")
    parsed = parse_yaml(value, f"--set {shown(text)}: the value")
    for part in reversed(parts):
        parsed = {part: parsed}
    return parsed


class _Loader(yaml.SafeLoader):
    """Plain values only, each written out: aliases make a few lines stand for gigabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not taken: write the value out")
        return super().compose_node(parent, index)  # type: ignore[no-untyped-call]


def parse_yaml(text: str, what: str) -> Any:
    """Return the value that yaml text stands for; a ConfigError begins with ``what`` it is."""
    try:
        return yaml.load(text, _Loader)
    except (
        yaml.YAMLError,
        ValueError,
        RecursionError,
        OverflowError,
    ) as error:  # some come from what values are made of
        reason = "too deeply nested" if isinstance(error, RecursionError) else str(error).splitlines()[0]
        raise ConfigError(f"{what} is not valid yaml ({reason})") from error


def differences(left: Mapping[str, Any], right: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any, Any]]:
    """The settings in which two nested mappings differ: (dotted key, left value, right value)."""
    found: list[tuple[str, Any, Any]] = []
    for key in [*left, *(key for key in right if key not in left)]:
        a, b = left.get(key), right.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            found.append((prefix + key, a, b))
    return found


def _convert(value: Any, hint: Any, name: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        (hint,) = (argument for argument in arguments if argument is not type(None))
        return _convert(value, hint, name)
    if origin is Literal:
        if isinstance(value, bool) and value not in arguments:
            value = "on" if value else "off"  # yaml 1.1 reads these words as truths
        if value in arguments:
            return value
        near = suggestion(value, map(str, arguments))
        raise ConfigError(f"{name}={shown(value)}: expected one of {', '.join(map(str, arguments))}{near}")
    if is_dataclass(hint):
        return typed(hint, value, name + ".")  # type: ignore[arg-type]
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(
                f"{name}={shown(value)}: expected settings, e.g. {name}.key=value, got {type(value).__name__}"
            )
        return dict(value)
    if origin is tuple:
        return _convert_tuple(value, arguments, name)
    if hint is float and isinstance(value, str):
        value = _number(value)  # yaml 1.1 reads 1e-5 as text
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = _number(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise ConfigError(f"{name}={shown(value)}: expected {hint.__name__}, got {type(value).__name__}")
    return value


def _convert_tuple(value: Any, arguments: tuple[Any, ...], name: str) -> tuple[Any, ...]:
    if not isinstance(value, tuple | list):
        raise ConfigError(f"{name}={shown(value)}: expected a list, e.g. [1, 2], got {type(value).__name__}")
    if arguments[-1] is Ellipsis:
        arguments = (arguments[0],) * len(value)
    if len(value) != len(arguments):
        raise ConfigError(f"{name}={shown(list(value))}: expected {len(arguments)} values, got {len(value)}")
    return tuple(
        _convert(item, hint, f"{name}[{i}]") for i, (item, hint) in enumerate(zip(value, arguments, strict=True))
    )


def _number(value: str | int) -> float | str:
    try:
        return float(value)
    except OverflowError:  # an integer of some hundred digits
        return float("inf")
    except ValueError:
        return str(value)
