"""A campaign in a temporary folder: recorded once, skipped when recorded, made again when its settings change."""

import json
import re
import signal
import subprocess
import sys
import time

import pytest

from nncsl import methods
from nncsl.benchmarks.accuracy import __main__ as accuracy
from nncsl.benchmarks.accuracy import campaign, pages, records, tables
from nncsl.errors import ConfigError
from tests.benchmarks.campaigns import SMALL, entry_recorded, record_of


def test_runs_are_recorded_skipped_and_made_again(write, tmp_path, capfd):
    write()
    assert accuracy.main(["run", "--jobs", "2", "tiny"]) == 0
    record = record_of(tmp_path, "csl")
    assert record["config"]["method"] == "csl" and record["config"]["seed"] == 3
    assert record["summary"]["seed"] == 3 and "--seed 3" in record["command"] and record["commit"]
    assert record["cpu_seconds"] > 0 and record["wall_seconds"] > 0 and record["machine"]["threads"] == 1
    assert record["machine"]["processor"]
    assert record["curves"]["task"] == [0] and 0 <= record["curves"]["unlabeled_accuracy"][0] <= 100
    capfd.readouterr()
    assert accuracy.main(["run", "tiny", "--threads", "1"]) == 0
    assert capfd.readouterr().out.count("recorded") == 2
    write(settings=SMALL | {"epochs": 2})
    accuracy.main(["table", "tiny"])
    assert "csl" not in capfd.readouterr().out  # what other settings made is not shown
    assert accuracy.main(["run", "tiny", "--threads", "1"]) == 0
    assert record_of(tmp_path, "csl")["config"]["epochs"] == 2


def test_a_part_of_a_campaign_can_be_run(write, tmp_path):
    write(seeds=(3, 4, 5))
    assert accuracy.main(["run", "tiny", "--only", "er", "--seeds", "3", "5", "--threads", "1"]) == 0
    assert [each.entry for each in records.read(tmp_path / "results" / "tiny.jsonl")] == [("er", 3), ("er", 5)]


def test_what_another_campaign_recorded_is_not_made_again(write, tmp_path, capfd):
    write("first", runs=["er"])
    assert accuracy.main(["run", "first", "--threads", "1"]) == 0
    write("second", runs={"replay": {"method": "er"}})
    capfd.readouterr()
    assert accuracy.main(["run", "second", "--threads", "1"]) == 0
    assert "second: replay seed 3: recorded" in capfd.readouterr().out
    assert not (tmp_path / "results" / "second.jsonl").exists()


def test_wall_time_is_that_of_the_timed_campaign_itself(write, capfd):
    write("busy", runs=["er"])
    assert accuracy.main(["run", "busy", "--threads", "1"]) == 0
    assert "wall s" not in tables.rows_of(campaign.read("busy"))[0]
    write("alone", runs=["er"], timed=True)
    assert campaign.read("alone").entries[0].record is None
    with pytest.raises(SystemExit):
        accuracy.main(["run", "alone", "--jobs", "2"])
    assert "--jobs 2: alone measures wall time" in capfd.readouterr().err
    assert accuracy.main(["run", "alone", "--threads", "1"]) == 0
    record = campaign.read("alone").records("er")[3]
    header, (row,) = tables.rows_of(campaign.read("alone"))
    assert row[header.index("wall min")] == f"{record['wall_seconds'] / 60:.1f}"


def test_wall_time_beside_a_reference_is_a_share_of_its_time(write, tmp_path):
    write(runs=["er", "finetune"], timed=True, reference="er")
    peak = {"total": 3e6, "teacher": 0, "bank": 0}
    summary = {
        "seed": 3,
        "average_accuracy": 1,
        "average_incremental_accuracy": 1,
        "forgetting": 1,
        "peak_memory": peak,
    }
    for entry, wall, training in zip(campaign.read("tiny").entries, (120.0, 180.0), (90.0, 96.0), strict=True):
        entry_recorded(entry, summary=summary | {"seconds": training}, wall_seconds=wall)
    header, (er, finetune) = tables.rows_of(campaign.read("tiny"))
    first = header.index("wall min")
    assert header[first : first + 4] == ["wall min", "% of er's", "training", "the rest"]
    assert er[first : first + 4] == ["2.0", "100.0", "75.0", "25.0"]
    assert finetune[first : first + 4] == ["3.0", "150.0", "80.0", "70.0"]


def test_a_setting_that_is_new_since_a_record_has_its_default_there(write, tmp_path):
    write(runs=["er"])
    entry_recorded(campaign.read("tiny").entries[0], summary={})
    path = tmp_path / "results" / "tiny.jsonl"
    record = json.loads(path.read_text())
    del record["config"]["kd_temperature"]
    records.add(path, record)
    assert campaign.read("tiny").entries[0].record is not None
    record["config"]["abandoned_setting"] = 1
    records.add(path, record)
    assert campaign.read("tiny").entries[0].record is None


def test_a_head_of_another_size_is_another_run(write):
    write("usual", runs=["er"])
    (usual,) = campaign.read("usual").entries
    entry_recorded(usual, summary={})
    write("roomy", runs=["er"], settings=SMALL | {"head_outputs": 20})
    (roomy,) = campaign.read("roomy").entries
    assert campaign.read("usual").entries[0].record is not None and roomy.record is None
    assert campaign.recorded_as(roomy.config) is None


def test_a_weight_that_a_method_never_reads_makes_no_other_run(write):
    write("usual", runs=["csl", "er", "paws"])
    for entry in campaign.read("usual").entries:
        entry_recorded(entry, summary={})
    write("weighted", runs=["csl", "er", "paws"], settings=SMALL | {"lambda_lin": 0.7})
    csl, er, paws = campaign.read("weighted").entries
    assert csl.record is None and er.record is not None and paws.record is not None


def test_a_line_begins_with_what_is_compared_and_stands_in_its_place(tmp_path):
    path = tmp_path / "tiny.jsonl"
    summary = {"accuracy_matrix": [[50.0]], "seconds": 1.0, "average_accuracy": 50.0}
    for run, seed in (("er", 1), ("csl", 2), ("er", 0), ("er", 1)):
        records.add(path, {"run": run, "seed": seed, "config": {}, "summary": summary, "curves": {"lr": [0.1]}})
    lines = path.read_text().splitlines()
    assert [line[: line.index(', "summ')] for line in lines] == [
        '{"run": "csl", "seed": 2',
        '{"run": "er", "seed": 0',
        '{"run": "er", "seed": 1',
    ]
    begin = '{"average_accuracy": 50.0, "seconds": 1.0, "accuracy_matrix": [[50.0]]}'
    assert all(f'"summary": {begin}' in line and line.endswith('"curves": {"lr": [0.1]}}') for line in lines)


def test_processes_that_record_at_the_same_time_lose_nothing(tmp_path):
    script = (
        "import sys; from pathlib import Path; from nncsl.benchmarks.accuracy import records\n"
        "for seed in range(30): records.add(Path(sys.argv[1]), {'run': sys.argv[2], 'seed': seed, 'summary': {}})"
    )
    path = tmp_path / "tiny.jsonl"
    started = [subprocess.Popen([sys.executable, "-c", script, str(path), run]) for run in ("er", "csl")]
    assert [process.wait() for process in started] == [0, 0]
    written = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(each["run"], each["seed"]) for each in written] == [(run, n) for run in ("csl", "er") for n in range(30)]


@pytest.mark.parametrize("method", ["csl", "joint"])
def test_an_interrupted_run_goes_on(write, tmp_path, method):
    """joint makes one task of what the preset gives it; its folder still is that of the same run."""
    write(runs=[method], settings=SMALL | {"tasks": 2, "epochs": 8})
    (entry,) = campaign.read("tiny").entries
    command = [sys.executable, "-m", "nncsl", "train", "--quiet", "--out", str(entry.folder), *entry.arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    journal = entry.folder / "metrics.jsonl"
    while not (journal.exists() and journal.read_text().count("\n") > 1):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    begun = journal.read_text().splitlines()[0]
    assert "%" in campaign.run(entry, threads=1, data_dir=None)
    assert journal.read_text().splitlines()[0] == begun  # images per second and all: it was not trained again
    assert entry.record["cpu_seconds"] is None and len(entry.record["curves"]["epoch"]) == 8 * entry.config.tasks


def test_a_failure_is_said_and_ends_with_an_error(write, capfd):
    write(runs={"csl": {"method": "csl", "lr_peak": 1e8, "lr_start": 1e8}})
    assert accuracy.main(["run", "tiny", "--threads", "1"]) == 1
    assert "failed" in capfd.readouterr().out


def test_the_table_has_means_deviations_paper_and_differences(write, tmp_path, capfd):
    write(runs=["er", "finetune"], seeds=(1, 2), reference="er", paper={"table": "main", "er": 36.3})
    for seed, (first, second) in {1: (50.0, 44.0), 2: (54.0, 46.0)}.items():
        for entry in campaign.read("tiny").entries:
            if entry.seed == seed:
                peak = {"total": 3e6, "teacher": 0, "bank": 1e6}
                value = first if entry.name == "er" else second
                summary = {"average_accuracy": value, "average_incremental_accuracy": 1.0, "forgetting": 2.0}
                machine = {"threads": 2 if entry.name == "finetune" and seed == 2 else 1}
                entry_recorded(entry, summary=summary | {"peak_memory": peak}, cpu_seconds=10.0, machine=machine)
    header, (er, finetune) = tables.rows_of(campaign.read("tiny"))
    er, finetune = dict(zip(header, er, strict=True)), dict(zip(header, finetune, strict=True))
    assert er["average accuracy"] == "52.0 ± 2.8" and er["paper"] == "36.3" and finetune["paper"] == ""
    assert er["CPU s"] == "10.0 ± 0.0" and er["bank MB"] == "1.0 ± 0.0"
    assert finetune["CPU s"] == "10.0"  # one of its runs had two threads, whose waiting counts
    assert finetune["minus er"] == "-7.0 ± 1.4"  # of 6 and 8: seeds are compared with themselves
    accuracy.main(["table", "tiny", "--markdown"])
    assert "| er | 2 | 36.3 | 52.0 ± 2.8 |" in capfd.readouterr().out


def test_cpu_time_is_that_of_one_processor(write):
    """Beside the times of a processor twice as fast a method looked twice as slow as it is."""
    write(runs=["er", "finetune"], seeds=(1, 2), reference="er")
    for entry in campaign.read("tiny").entries:
        slow = entry.name == "finetune" and entry.seed == 2
        summary = {"average_accuracy": 1.0, "average_incremental_accuracy": 1.0, "forgetting": 2.0}
        summary["peak_memory"] = {"total": 3e6, "teacher": 0, "bank": 1e6}
        machine = {"threads": 1, "processor": "slow" if slow else "fast"}
        entry_recorded(entry, summary=summary, cpu_seconds=20.0 if slow else 10.0, machine=machine)
    header, rows = tables.rows_of(campaign.read("tiny"))
    assert [row[header.index("CPU s")] for row in rows] == ["10.0 ± 0.0", "10.0"]


def test_curves_are_drawn(write, tmp_path, capfd):
    write(runs=["csl", "er"], settings=SMALL | {"tasks": 2})
    accuracy.main(["plot", "tiny"])
    assert "no curves" in capfd.readouterr().out
    assert accuracy.main(["run", "tiny", "--threads", "1"]) == 0
    assert accuracy.main(["plot", "tiny"]) == 0
    drawn = (tmp_path / "results" / "tiny.png").read_bytes()
    assert drawn.startswith(b"\x89PNG") and 3_000 < len(drawn) < 200_000
    assert accuracy.main(["plot", "tiny", "--only", "csl"]) == 0
    assert (tmp_path / "results" / "tiny.png").read_bytes() != drawn


@pytest.mark.parametrize("name", campaign.names())
def test_recorded_campaigns_are_valid(name):
    read = campaign.read(name)
    assert read.entries and set(read.paper) <= set(read.runs)
    assert read.reference is None or read.reference in read.runs
    assert all((entry.config.seed >= 100) == read.tunes for entry in read.entries)


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.name)
def test_pages_have_the_tables_of_what_is_recorded(page):
    text = page.read_text()
    assert pages.documented(text) == text, "run python -m nncsl.benchmarks.accuracy document"


def test_a_number_changed_by_hand_is_made_anew():
    for name, row in (("README.md", "| `finetune` |"), ("REPRODUCIBILITY.md", "| finetune |")):
        text = (pages.ROOT / name).read_text()
        assert row in text and pages.documented(text.replace(row, row + " 99.9 |")) == text


def test_an_overview_has_the_campaigns_and_the_paper_side_by_side(write):
    write("first", runs=["csl", "er"], seeds=range(5), title="few")
    write("second", runs=["er", "finetune"], seeds=(0, 1), paper={"table": "main", "er": 36.3})
    for name, step in (("first", 1.0), ("second", 2.0)):
        for entry in campaign.read(name).entries:
            if (entry.name, entry.seed) not in (("csl", 4), ("finetune", 1)):
                entry_recorded(entry, summary={"average_accuracy": 50 + step * entry.seed})
    write("third", runs=["csl"], seeds=(7,), paper={"table": "main", "csl": 64.5})
    lines = pages.overview([campaign.read("first"), campaign.read("second")]).splitlines()
    assert lines[0] == "| average accuracy, % | few, 5 seeds | 95% interval | second, 2 seeds | paper, full size |"
    assert lines[2:] == [
        "| `csl` | 51.5 ± 1.3 (4) |  |  |  |",
        "| `er` | 52.0 ± 1.6 | 50.0 to 54.0 | 51.0 ± 1.4 | 36.3 |",
        "| `finetune` |  |  | 50.0 (1) |  |",
    ]
    entry_recorded(campaign.read("third").entries[0], summary={"average_accuracy": 40})
    once = pages.overview([campaign.read(name) for name in ("first", "second", "third")]).splitlines()
    assert once[0].endswith("| second, 2 seeds | third, 1 seed | paper, full size |")
    assert once[2] == "| `csl` | 51.5 ± 1.3 (4) |  |  | 40.0 | 64.5 |"
    write("fourth", runs=["er"], seeds=(0,), paper={"table": "main", "er": 8.2})  # the paper's value on other data
    apart = pages.overview([campaign.read(name) for name in ("first", "second", "fourth")]).splitlines()
    assert apart[0].endswith("| second, 2 seeds | paper, full size | fourth, 1 seed | paper, full size |")
    assert apart[3].endswith("| 51.0 ± 1.4 | 36.3 | 50.0 | 8.2 |")


def test_an_overview_leaves_out_the_runs_that_the_page_names(write):
    write("first", runs=["csl", "er"])
    for entry in campaign.read("first").entries:
        entry_recorded(entry, summary={"average_accuracy": 50.0})
    place = "<!-- overview first without {} -->\n<!-- end -->\n"
    assert "`csl`" in (shown := pages.documented(place.format("er"))) and "| `er`" not in shown
    with pytest.raises(ConfigError, match="without paws"):
        pages.documented(place.format("paws"))
    other = pages.documented("<!-- overview first only er -->\n<!-- end -->\n")
    assert "`csl`" not in other and "| `er`" in other


def test_what_is_not_recorded_is_listed(write):
    write("first", runs=["csl", "er"], seeds=(3, 4, 5, 6, 8))
    write("second", runs=["er", "finetune"], settings=SMALL | {"epochs": 2})
    for entry in campaign.read("first").entries:
        if entry.name == "er" and entry.seed == 3:
            entry_recorded(entry, summary={"average_accuracy": 50.0})
    shown = pages.documented("<!-- missing all -->\n<!-- end -->\n").splitlines()
    assert "| `first` | 9 of 10 | `csl`, `er` (4 to 6, 8) |" in shown and "| `second` | 2 of 2 | all |" in shown
    for name in ("first", "second"):
        for entry in campaign.read(name).entries:
            entry_recorded(entry, summary={"average_accuracy": 50.0})
    assert "`first`" not in pages.documented("<!-- missing all -->\n<!-- end -->\n")


def test_every_system_has_a_status_and_what_was_said_of_it_stays():
    text = (pages.ROOT / "REPRODUCIBILITY.md").read_text()
    rows = dict(re.findall(r"^\| `([\w-]+)` \| (\d+ \| [^|]+ \| [^|]+ \| .*) \|$", text, re.MULTILINE))
    assert list(rows) == list(methods.METHODS)
    agreements = [row.split(" | ")[2] for row in rows.values()]
    assert all(agreements) and pages.documented(text.replace(" | digits ", " | tens ")) == text
