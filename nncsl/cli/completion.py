"""``nncsl completion``: sub-commands, flags and names at the press of Tab.

The script is made from the command's own parser: what it takes is what is offered.
"""

import argparse
import re
from collections.abc import Iterable, Iterator
from typing import Any

from nncsl.cli.settings import command
from nncsl.errors import UserError

_SHELLS = ("bash", "zsh", "fish")
# What is a folder or a file on disk, by where argparse stores it.
_FOLDERS = ("path", "run_folder", "of_run", "resume", "data_dir")
_FILES_OR_FOLDERS = ("out", "images", "csv", "sheet", "to")


def add(commands: Any) -> None:
    """Declares the command."""
    parser = command(
        commands,
        "completion",
        _completion,
        "print a script that completes this command in a shell",
        "nncsl completion bash > ~/.local/share/bash-completion/completions/nncsl",
        'nncsl completion zsh > "${fpath[1]}/_nncsl"',
        "nncsl completion fish > ~/.config/fish/completions/nncsl.fish",
    )
    parser.add_argument("shell", choices=_SHELLS)


def _completion(arguments: argparse.Namespace) -> int:
    from nncsl.cli import build_parser

    print(script(arguments.shell, build_parser()))
    return 0


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """The script that completes ``parser``'s sub-commands, flags and their values in ``shell``."""
    try:
        import shtab
    except ImportError as error:
        raise UserError(f'completion needs shtab ({error}): pip install "nncsl[completion]"') from error
    names = known_names()
    for action in _actions(parser):
        # Only offered, not demanded: a name that is not among them still gets the command's own, better error.
        if action.dest in names and not action.choices:
            action.choices = names[action.dest]
        elif action.dest in _FOLDERS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif action.dest in _FILES_OR_FOLDERS:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    return shtab.complete(parser, shell)


def known_names() -> dict[str, list[str]]:
    """The values that a setting is known to take, by the setting."""
    from typing import get_args, get_type_hints

    from nncsl.config import Config, presets
    from nncsl.data.sources import SOURCES
    from nncsl.featurebank.codecs import CODECS
    from nncsl.methods import METHODS

    return {
        "preset": presets(),
        "dataset": _harmless(SOURCES),  # not folder:PATH, whose colon means something to shells
        "method": _harmless(METHODS),
        "teacher_mode": [*get_args(get_type_hints(Config)["teacher_mode"])],
        "device": ["auto", "cpu", "cuda"],
        "bank_codec": [*CODECS],
    }


def _harmless(names: Iterable[str]) -> list[str]:
    """The names that a shell takes for nothing but a word: others could execute something at the press of Tab."""
    return [name for name in names if re.fullmatch(r"[\w.+-]+", name)]


def _actions(parser: argparse.ArgumentParser) -> Iterator[Any]:
    """Every argument of the parser and of its sub-commands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _actions(inner)
        else:
            yield action
