"""Runs: starting them, resuming them, adding tasks to them, opening them again."""

from nncsl.record.state import RunState
from nncsl.runs.continuing import extend
from nncsl.runs.opening import Trained, evaluate, find_device, reopen
from nncsl.runs.training import MEMORY_PARTS, RunInterrupted, resume, start, write_report

__all__ = [
    "MEMORY_PARTS",
    "RunInterrupted",
    "RunState",
    "Trained",
    "evaluate",
    "extend",
    "find_device",
    "reopen",
    "resume",
    "start",
    "write_report",
]
