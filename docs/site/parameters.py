"""Show what a docstring says of each parameter as a list: its lines of their own would run together as prose."""

import re

import griffe

_SAID_OF = re.compile(r"^(\w+)(?: \[[^\]]*\])?[:;,] |^(\w+) \[")


class Parameters(griffe.Extension):
    """Puts a mark before each line that begins with the name of a parameter; lines indented below belong to it."""

    def on_function(self, *, func: griffe.Function, **kwargs: object) -> None:
        if func.docstring is None:
            return
        names = {parameter.name for parameter in func.parameters}
        lines = func.docstring.value.split("\n")
        for place, line in enumerate(lines):
            found = _SAID_OF.match(line)
            if place and found and (found[1] or found[2]) in names:
                lines[place] = ("" if lines[place - 1].startswith(("- ", "    ", "  ")) else "\n") + f"- {line}"
        func.docstring.value = "\n".join(lines)
