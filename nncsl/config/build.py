"""Plain mappings (yaml, ``key=value`` flags) to frozen dataclasses and back, with every mistake named."""

import difflib
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from nncsl.errors import ConfigError

T = TypeVar("T")


def typed(cls: type[T], values: Mapping[str, Any], prefix: str = "") -> T:
    """An instance of the dataclass ``cls`` from a nested mapping; unknown keys and wrong types are ConfigErrors."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{prefix.rstrip('.') or 'config'}: expected a mapping of settings, got {values!r}")
    known = {field.name: field for field in fields(cls)}  # type: ignore[arg-type]
    hints = get_type_hints(cls)
    for key in values:
        if key not in known:
            raise ConfigError(f"unknown setting {prefix}{key!s}{_suggestion(str(key), list(known), prefix)}")
    missing = [name for name, f in known.items() if name not in values and f.default is f.default_factory is MISSING]
    if missing:
        raise ConfigError(f"setting {prefix}{missing[0]} is missing and has no default")
    converted = {key: _convert(value, hints[key], prefix + key) for key, value in values.items()}
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
        raise ConfigError(f"--set {text!r}: expected key=value, e.g. --set epochs=10 or --set network.width=16")
    try:
        parsed = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {text!r}: the value {value!r} is not valid yaml") from error
    for part in reversed(key.strip().split(".")):
        parsed = {part: parsed}
    return parsed


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


def _suggestion(key: str, known: list[str], prefix: str) -> str:
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    return f"; did you mean {prefix}{close[0]}?" if close else f"; known settings here: {', '.join(sorted(known))}"


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
        raise ConfigError(f"{name}={value!r}: expected one of {', '.join(map(str, arguments))}")
    if is_dataclass(hint):
        return typed(hint, value, name + ".")  # type: ignore[arg-type]
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{name}={value!r}: expected settings, e.g. {name}.key=value, got {type(value).__name__}")
        return dict(value)
    if origin is tuple:
        return _convert_tuple(value, arguments, name)
    if hint is float and isinstance(value, str):
        value = _number(value)  # yaml 1.1 reads 1e-5 as text
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise ConfigError(f"{name}={value!r}: expected {hint.__name__}, got {type(value).__name__}")
    return value


def _convert_tuple(value: Any, arguments: tuple[Any, ...], name: str) -> tuple[Any, ...]:
    if not isinstance(value, tuple | list):
        raise ConfigError(f"{name}={value!r}: expected a list, e.g. [1, 2], got {type(value).__name__}")
    if arguments[-1] is Ellipsis:
        arguments = (arguments[0],) * len(value)
    if len(value) != len(arguments):
        raise ConfigError(f"{name}={list(value)!r}: expected {len(arguments)} values, got {len(value)}")
    return tuple(
        _convert(item, hint, f"{name}[{i}]") for i, (item, hint) in enumerate(zip(value, arguments, strict=True))
    )


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
