"""summary.json: what was measured of a run, and the same as a table for its end."""

from typing import Any

from nncsl import metrics
from nncsl.config import Config, parse_bytes
from nncsl.record import ledger
from nncsl.record.state import RunState
from nncsl.version import versions

NO_PARTS = ("total", "baseline", "budget", "budget_used")


def summarize(state: RunState, config: Config) -> dict[str, Any]:
    """summary.json: accuracies in percent, memory in bytes."""
    matrix = state.accuracy_matrix
    gone = [str(number) for number, value in enumerate(matrix[-1], 1) if value is None]
    unmeasured = f"the test images of tasks {', '.join(gone)} are gone: accuracies that need them are null"
    return {
        "method": config.method,
        "teacher_mode": config.teacher_mode,
        "dataset": config.dataset,
        "accuracy_matrix": matrix,
        "average_accuracy": metrics.average_accuracy(matrix),
        "seen_accuracy": state.seen_accuracy,
        "average_incremental_accuracy": metrics.average_incremental_accuracy(state.seen_accuracy),
        "fwt": metrics.forward_transfer(state.ahead, state.untrained[1:]),
        "bwt": metrics.backward_transfer(matrix),
        "forgetting": metrics.forgetting(matrix),
        **state.extra,
        **({"unmeasured": unmeasured} if gone else {}),
        "seconds": state.seconds,
        "images_per_second": state.images / max(state.seconds, 1e-9),
        "peak_memory": state.peak_memory,
        "kept": ledger.fullest(state.kept.values()),
        **({"keep": parse_bytes(config.keep, "keep", least=0)} if config.keep else {}),
        "kept_by_task": [ledger.with_total(parts) for _, parts in sorted(state.kept.items())],
        "seed": config.seed,
        "versions": versions(),
    }


def results(summary: dict[str, Any], *, classifies: bool = True) -> list[tuple[str, str]]:
    """Return the lines of the table; of a method that does not classify, those that are not about accuracy."""
    memory = summary["peak_memory"]
    parts = [f"{name} {size / 1e6:.1f}" for name, size in memory.items() if name not in NO_PARTS]
    accuracies = [
        ("average accuracy", _or_dash(summary["average_accuracy"], "%")),
        ("average incremental accuracy", _or_dash(summary["average_incremental_accuracy"], "%")),
        ("forgetting", _or_dash(summary["forgetting"])),
        ("backward / forward transfer", f"{_or_dash(summary['bwt'])} / {_or_dash(summary['fwt'])}"),
    ]
    rows = [
        *(accuracies if classifies else []),
        ("training", f"{summary['seconds']:.0f} s, {summary['images_per_second']:.0f} images/s"),
        ("peak memory", f"{memory['total'] / 1e6:.0f} MB ({', '.join(parts)})"),
    ]
    if "unmeasured" in summary:
        rows.append(("not measured", summary["unmeasured"]))
    kept, limit = summary["kept"], summary.get("keep")
    exceeded = f"; EXCEEDS --keep, {limit / 1e6:.3g} MB" if limit and kept[ledger.TOTAL] > limit else ""
    rows.append(("kept beside the student", ledger.line(kept) + exceeded))
    if "budget" in memory:
        own = memory["budget_used"]
        verdict = "" if own <= 1.05 * memory["budget"] else ": EXCEEDED; please report this run's plan.json"
        rows.append(("memory budget", f"{own / 1e6:.0f} of {memory['budget'] / 1e6:.0f} MB used{verdict}"))
    if "ranks" in summary:
        ranks = summary["ranks"]
        sent = (
            f"{ranks['bytes_per_step'] / 1e6:.2f} MB sent and {ranks['waiting_per_step'] * 1e3:.1f} ms waited per step"
        )
        peaks = ", ".join(f"{size / 1e6:.0f}" for size in ranks["peak_memory"])
        rows.append(("ranks", f"{ranks['count']}{', exact' * ranks['exact']}; {sent}; peak memory {peaks} MB"))
    return rows


def _or_dash(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{value:.1f}{unit}"
