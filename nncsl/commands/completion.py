"""``nncsl completion``: sub-commands, flags and names at the press of Tab."""

import argparse
from typing import Any

from nncsl.commands.settings import command

_SHELLS = ("bash", "zsh", "fish")


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
    from nncsl.completion import script

    print(script(arguments.shell, build_parser()))
    return 0
