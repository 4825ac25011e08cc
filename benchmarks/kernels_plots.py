"""Figures of the recorded csv; nothing is measured here."""

import csv
from pathlib import Path

COLORS = {"eager": "#7f7f7f", "compile": "#1f77b4", "sdpa": "#2ca02c", "kernels": "#d62728"}


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def plot(path: Path) -> list[Path]:
    """One figure per kernel beside the csv: time (median, band from 20 to 80 percent) above, peak memory below."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "nncsl", "svg.fonttype": "none"})  # same file each time, text as text
    from matplotlib import pyplot

    rows = [row for row in read(path) if row["mode"] == "full"]
    written = []
    for kernel in sorted({row["kernel"] for row in rows}):
        chosen = [row for row in rows if row["kernel"] == kernel]
        threads = min(int(row["threads"]) for row in chosen)
        chosen = [row for row in chosen if int(row["threads"]) == threads]
        classes = sorted({int(row["C"]) for row in chosen})
        figure, axes = pyplot.subplots(2, len(classes), figsize=(4 * len(classes), 6), sharex=True, squeeze=False)
        for column, count in enumerate(classes):
            for provider in COLORS:
                line = [r for r in chosen if r["provider"] == provider and int(r["C"]) == count]
                line.sort(key=lambda r: int(r["K"]))
                if not line:
                    continue
                x = [int(r["K"]) for r in line]
                low, middle, high = ([float(r[name]) for r in line] for name in ("ms_q20", "ms_q50", "ms_q80"))
                axes[0][column].plot(x, middle, "o-", color=COLORS[provider], label=provider, markersize=3)
                axes[0][column].fill_between(x, low, high, color=COLORS[provider], alpha=0.2, linewidth=0)
                memory = [
                    (k, float(r["peak_mib"])) for k, r in zip(x, line, strict=True) if float(r["peak_mib"] or 0) > 0
                ]
                if memory:
                    axes[1][column].plot(*zip(*memory, strict=True), "o-", color=COLORS[provider], markersize=3)
            axes[0][column].set(title=f"C = {count}", xscale="log", yscale="log")
            axes[1][column].set(xlabel="supports K", xscale="log", yscale="log")
        axes[0][0].set_ylabel("forward + backward, ms")
        axes[1][0].set_ylabel("peak extra memory, MiB")
        axes[0][0].legend()
        first = chosen[0]
        figure.suptitle(
            f"{kernel}: N = {first['N']}, D = {first['D']}, {first['dtype']}, {first['device']}, {threads} thread(s)"
        )
        figure.tight_layout()
        target = path.with_name(f"{path.stem}-{kernel}.svg")
        figure.savefig(target, metadata={"Date": None})
        pyplot.close(figure)
        written.append(target)
    return written
