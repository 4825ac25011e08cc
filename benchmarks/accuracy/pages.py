"""The tables of the pages, made from records: what stands between ``<!-- KIND NAME ... -->`` and ``<!-- end -->``.

campaign NAME [of VERSION]: the campaign's whole table, or that of what an older version recorded.
overview NAME ...: a row for each run, the campaigns side by side, each with the paper's values where it has some.
transfer NAME ...: what the campaigns' runs gained or lost between tasks; costs NAME ...: what they took.
guesses NAME RUN ...: how many unlabeled images these runs of a campaign recognized at each task's end.
status NAME ...: how many runs and seeds each system has; what else its rows say is written by hand and stays.
missing all: what of all campaigns is not recorded.

`without RUN ...` or `only RUN ...` after the names leaves out those runs, or all others.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from nncsl import methods
from nncsl.errors import ConfigError

from ..accuracy.campaign import Campaign, Entry, read
from ..accuracy.campaign import names as campaign_names
from ..accuracy.records import Record
from ..accuracy.tables import (
    INTERVAL,
    as_markdown,
    average_accuracies,
    chosen_columns,
    costs,
    guesses,
    interval,
    markdown,
    spread,
    transfer,
)

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "REPRODUCIBILITY.md", *sorted((ROOT / "docs").glob("*.md"))]
_PLACE = re.compile(
    r"(<!-- (campaign|overview|transfer|costs|guesses|status|missing) ([\w.% -]+) -->\n)(.*?)(?=<!-- end -->)",
    re.DOTALL,
)


def documented(text: str) -> str:
    """Return a page with its tables made anew."""
    return _PLACE.sub(lambda found: f"{found[1]}\n{_table(found[2], found[3].split(), found[4])}\n\n", text)


def _table(kind: str, words: list[str], present: str) -> str:
    if kind == "guesses":
        return guesses(read(words[0]), words[1:])
    if kind == "missing":
        return missing([read(name) for name in campaign_names()])
    place = next((place for place, word in enumerate(words) if word in ("without", "only")), len(words))
    names, version = words[:place], ""
    if kind == "campaign" and "of" in names:  # NAME of VERSION
        names, version = names[:1], names[2]
    campaigns = [read(name, version or None) for name in names]
    if words[place:]:
        campaigns = _restricted(campaigns, *words[place:])
    if kind == "campaign":
        return as_markdown(campaigns[0])
    if kind in ("transfer", "costs"):
        return chosen_columns(campaigns, {"transfer": transfer, "costs": costs}[kind])
    return overview(campaigns) if kind == "overview" else status(campaigns, present)


def overview(campaigns: Sequence[Campaign]) -> str:
    """Return average accuracies: those of the campaigns side by side, the paper's beside those that reduce the same."""
    runs = _merged([campaign.runs for campaign in campaigns])
    header, columns = ["average accuracy, %"], [[f"`{run}`" for run in runs]]
    for group in _with_one_paper(campaigns):
        for campaign in group:
            values = {run: average_accuracies(campaign.records(run)) for run in runs}
            seeds = max(map(len, values.values()))
            header.append(f"{campaign.title}, {seeds} seed{'s' if seeds != 1 else ''}")
            columns.append([_cell(values[run], seeds) for run in runs])
            if any(map(interval, values.values())):
                header.append(INTERVAL)
                columns.append([interval(values[run]) for run in runs])
        if paper := {run: value for campaign in group for run, value in campaign.paper.items()}:
            header.append("paper, full size")
            columns.append([f"{paper[run]:.1f}" if run in paper else "" for run in runs])
    return markdown(header, [row for row in zip(*columns, strict=True) if any(row[1:])])


def status(campaigns: Sequence[Campaign], present: str) -> str:
    """Return the table that stands there with the number of runs and the seeds of each system counted anew.

    A system that it lacks gets a row.
    """
    written = {}
    for line in present.strip().splitlines()[2:]:
        _, name, _, _, *judged, _ = (cell.strip() for cell in line.split("|"))
        written[name.strip("`")] = judged
    rows = []
    for name in methods.METHODS:
        entries = [e for c in campaigns for e in c.entries if e.config.method == name and e.record is not None]
        rows.append([f"`{name}`", str(len(entries)), _seeds(campaigns, entries), *(written.get(name) or ["", ""])])
    return markdown(["system", "runs", "seeds", "agrees with the paper", "note"], rows)


def missing(campaigns: Sequence[Campaign]) -> str:
    """Return which runs of each campaign are not recorded: those without a seed, and the seeds that others lack."""
    rows = []
    for campaign in campaigns:
        lacking: dict[str, list[int]] = {}
        for entry in campaign.entries:
            if entry.record is None:
                lacking.setdefault(entry.name, []).append(entry.seed)
        if lacking:
            count = sum(map(len, lacking.values()))
            told = ", ".join(_told(run, seeds, campaign.records(run)) for run, seeds in lacking.items())
            everything = count == len(campaign.entries)
            rows.append([f"`{campaign.name}`", f"{count} of {len(campaign.entries)}", "all" if everything else told])
    return markdown(["campaign", "runs missing", "which"], rows)


def _told(run: str, seeds: Sequence[int], recorded: Mapping[int, Record]) -> str:
    """Return a run's name, with the seeds that it lacks where it has some: "a to b" where they follow each other."""
    ends = [seed for seed in seeds if seed + 1 not in seeds]
    starts = [seed for seed in seeds if seed - 1 not in seeds]
    spans = (f"{a} to {b}" if a != b else f"{a}" for a, b in zip(starts, ends, strict=True))
    return f"`{run}` ({', '.join(spans)})" if recorded else f"`{run}`"


def _seeds(campaigns: Sequence[Campaign], entries: Sequence[Entry]) -> str:
    """Return how many seeds there are of each campaign."""
    counts = {c.title: len({e.seed for e in entries if e.campaign == c.name}) for c in campaigns}
    return ", ".join(f"{title}: {count}" for title, count in counts.items() if count) or "none"


def _cell(values: Sequence[float], seeds: int) -> str:
    """Return mean and deviation, and of how many seeds where there are fewer than in the header."""
    return spread(values) + (f" ({len(values)})" if 0 < len(values) < seeds else "")


def _with_one_paper(campaigns: Sequence[Campaign]) -> list[list[Campaign]]:
    """Return the campaigns in groups of neighbors that have the same values of the paper, or none."""
    groups: list[list[Campaign]] = [[]]
    for campaign in campaigns:
        paper = {run: value for before in groups[-1] for run, value in before.paper.items()}
        if any(paper.get(run, value) != value for run, value in campaign.paper.items()):
            groups.append([])
        groups[-1].append(campaign)
    return groups


def _restricted(campaigns: Sequence[Campaign], how: str, *runs: str) -> list[Campaign]:
    """Return the campaigns without these runs, or with them only."""
    for name in runs:
        if not any(name in campaign.runs for campaign in campaigns):
            raise ConfigError(f"{how} {name}: expected a run of {', '.join(one.name for one in campaigns)}")
    return [
        replace(one, entries=[entry for entry in one.entries if (entry.name in runs) == (how == "only")])
        for one in campaigns
    ]


def _merged(lists: Sequence[Sequence[str]]) -> list[str]:
    """Return all names, each after the one that it follows in the list that has it first."""
    merged: list[str] = []
    for names in lists:
        for place, name in enumerate(names):
            if name not in merged:
                merged.insert(merged.index(names[place - 1]) + 1 if place else 0, name)
    return merged
