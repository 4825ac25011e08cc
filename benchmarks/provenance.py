"""Where a record comes from: the code and the machine."""

import platform
import re
import subprocess
from pathlib import Path


def current_commit() -> str:
    """Of the code that runs; recorded results, which running it changes, don't make it another code."""
    changed = _git("status", "--porcelain", "-uno", "--", ":!/benchmarks/results")
    return (_git("rev-parse", "HEAD") or "unknown") + ("+changes" if changed else "")


def processor() -> str:
    """Name, family and model: virtual machines of different speed go by the same name."""
    try:
        facts = dict(re.findall(r"^([\w ]+?)\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE))
    except OSError:
        facts = {}
    if "model name" not in facts:
        return platform.processor() or platform.machine()
    numbers = [f"{short} {facts[key]}" for key, short in (("cpu family", "family"), ("model", "model")) if key in facts]
    return f"{facts['model name']} ({', '.join(numbers)})" if numbers else facts["model name"]


def _git(*arguments: str) -> str:
    """What git says; nothing where there is no git, or no repository."""
    try:
        return subprocess.run(
            ["git", *arguments], capture_output=True, text=True, cwd=Path(__file__).parent
        ).stdout.strip()
    except OSError:
        return ""
