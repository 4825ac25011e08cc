"""Accuracy campaigns: lists of runs and seeds, one command each, resumable, recorded.

    python -m nncsl.benchmarks.accuracy list
    python -m nncsl.benchmarks.accuracy run NAME ... [--only RUN ...] [--seeds N ...] [--jobs 2] [--data-dir DIR]
    python -m nncsl.benchmarks.accuracy table NAME ... [--markdown]
    python -m nncsl.benchmarks.accuracy plot NAME ... [--only RUN ...]
    python -m nncsl.benchmarks.accuracy document

A campaign is a yaml file in benchmarks/accuracy/campaigns. Finished runs are skipped, also those that another campaign
has recorded with the same settings; interrupted ones go on, and runs whose settings have changed since are made again.
A campaign's records are benchmarks/results/accuracy/NAME.jsonl, a line for each run: its summary.json, how and where it
was made, resolved settings and curves. `document` renews the tables of the pages from them. `plot` draws NAME.png, the
curves; of a campaign with `bytes: true` also NAME.svg, accuracy against bytes kept, and bytes.svg of all those; of one
with `seconds: true` NAME.svg, accuracy against time.
"""

import argparse
import os
from concurrent.futures import ThreadPoolExecutor

from nncsl.files import write_text

from ..accuracy import bytes_figure, campaign, frontier_figure, pages, plots, tables


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m nncsl.benchmarks.accuracy", description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("list", "run", "table", "plot", "document"))
    parser.add_argument("campaigns", nargs="*", metavar="NAME", help="names that `list` shows (default: all)")
    parser.add_argument("--only", nargs="+", metavar="RUN", help="run or plot these of the campaigns' runs, not all")
    parser.add_argument("--seeds", nargs="+", type=int, metavar="N", help="run these of the campaigns' seeds, not all")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--threads", type=int, help="threads of each run (default: the cores, shared among the jobs)")
    parser.add_argument("--data-dir", help="where the campaigns' data sets lie")
    parser.add_argument("--markdown", action="store_true", help="the table as the pages have it")
    options = parser.parse_intermixed_args(argv)
    names = campaign.names()
    for name in options.campaigns:
        if name not in names:
            parser.error(f"campaign: expected one of {', '.join(names)}, got {name}")
    if options.action == "list":
        print("\n".join(names))
        return 0
    if options.action == "document":
        for page in pages.PAGES:
            if (written := pages.documented(text := page.read_text())) != text:
                write_text(page, written)
        return 0
    chosen = [campaign.read(name) for name in options.campaigns or names]
    if options.action == "plot":
        for one in chosen:
            print(plots.draw(one, options.only) or f"{one.name}: no curves are recorded")
            if one.counts_bytes:
                figure = bytes_figure.draw([one], campaign.RESULTS / f"{one.name}.svg")
                print(figure or f"{one.name}: no bytes are recorded")
            if one.counts_seconds:
                figure = frontier_figure.draw(one, campaign.RESULTS / f"{one.name}.svg")
                print(figure or f"{one.name}: no times are recorded")
        if any(one.counts_bytes for one in chosen):
            print(bytes_figure.draw_all() or "bytes.svg: no bytes are recorded")
        return 0
    entries: list[campaign.Entry] = []
    if options.action == "run":
        timed = [one.name for one in chosen if one.timed]
        if timed and options.jobs > 1:
            parser.error(f"--jobs {options.jobs}: {', '.join(timed)} measures wall time; run it with --jobs 1")
        wanted = [e for one in chosen for e in one.entries if e.name in (options.only or one.runs)]
        entries = [e for e in wanted if e.seed in (options.seeds or [e.seed])]
        threads = options.threads or max(1, (os.cpu_count() or 1) // options.jobs)
        with ThreadPoolExecutor(options.jobs) as pool:
            for line in pool.map(lambda entry: campaign.run(entry, threads, options.data_dir), entries):
                print(line, flush=True)
    for one in chosen:
        tables.show(one, markdown=options.markdown)
    return int(any(entry.record is None for entry in entries))


if __name__ == "__main__":
    raise SystemExit(main())
