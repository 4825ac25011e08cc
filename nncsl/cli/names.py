"""What --preset and --method take, for a help that must not wait for torch.

Presets are the files that are there; methods are read from the source of their registry.
"""

import ast
import shutil
import textwrap
from functools import cache
from itertools import takewhile
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def presets() -> list[str]:
    """Return the names of all presets, sorted."""
    return sorted(path.stem for path in (_PACKAGE / "config" / "presets").glob("*.yaml"))


@cache
def methods() -> list[str]:
    """Return the keys of ``nncsl.methods.METHODS``, in their order."""
    for statement in ast.parse((_PACKAGE / "methods" / "__init__.py").read_text()).body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id="METHODS"), value=ast.Dict(keys=keys)):
                return [str(ast.literal_eval(key)) for key in keys if key is not None]
    raise LookupError("nncsl/methods/__init__.py has no METHODS")


def described_presets() -> list[tuple[str, str]]:
    """Return each preset with the first sentence of the comment at its top."""
    found = []
    for name in presets():
        lines = (_PACKAGE / "config" / "presets" / f"{name}.yaml").read_text().splitlines()
        comment = " ".join(line.lstrip("# ") for line in takewhile(lambda line: line.startswith("#"), lines))
        found.append((name, comment.split(". ")[0].split(": ")[0].rstrip(".")))
    return found


def overview() -> str:
    """Return a part of a help: the presets with what they are, and the methods."""
    rows = [wrapped(f"  {name:<15} {about}", indent=18) for name, about in described_presets()]
    listed = wrapped("  " + ", ".join(methods()), indent=2)
    return "\n".join(["presets:", *rows, "", "methods (`nncsl methods` says what each is):", listed])


def wrapped(text: str, indent: int = 0) -> str:
    """Return the text in lines that fit the terminal, as argparse wraps what it is not told to leave."""
    width = min(100, shutil.get_terminal_size().columns - 2)
    return textwrap.fill(text, max(width, indent + 20), subsequent_indent=" " * indent, break_on_hyphens=False)
