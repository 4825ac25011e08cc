"""What the tests of campaigns share."""

from nncsl.benchmarks.accuracy import campaign, records

SMALL = {"network.width": 8, "network.hidden": 16, "tasks": 1, "epochs": 1}


def record_of(tmp_path, run, seed=3, name="tiny"):
    (record,) = [r.record for r in records.read(tmp_path / "results" / f"{name}.jsonl") if r.entry == (run, seed)]
    return record


def entry_recorded(entry, **values):
    """Writes a record of a run that has not been made."""
    record = {"run": entry.name, "seed": entry.seed, "config": campaign.build.plain(entry.config)}
    records.add(entry.file, record | values)
