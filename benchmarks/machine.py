"""The machine that a record was made on."""

import platform
import re
from pathlib import Path


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
