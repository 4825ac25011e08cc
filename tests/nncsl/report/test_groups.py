"""Which runs belong together, what they are called, and what their means are."""

import dataclasses
import statistics

import pytest

from nncsl.report.collect import collect
from nncsl.report.compare import verdict
from nncsl.report.groups import group


@pytest.fixture(scope="module")
def records(runs):
    return {name: collect(folder) for name, folder in runs.items()}


def changed(record, **settings):
    return dataclasses.replace(record, config={**record.config, **settings})


def test_runs_that_differ_in_the_seed_alone_are_one_group(records):
    er, nncsl = group(list(records.values()))
    assert (er.name, nncsl.name) == ("er", "nncsl")
    assert [run.config["seed"] for run in nncsl.runs] == [0, 1]
    (alone,) = group([records["nncsl-0"], records["nncsl-1"]])
    assert alone.name == "nncsl on digits" and alone.apart == {}


def test_a_group_is_named_by_as_little_as_sets_it_apart(records):
    first = records["nncsl-0"]
    taught = changed(first, teacher_mode="model", bank_codec="fp32")
    groups = group([records["er-0"], first, taught])
    assert [each.name for each in groups] == ["er", "nncsl, teacher_mode=features", "nncsl, teacher_mode=model"]
    assert list(groups[0].apart) == ["method", "teacher_mode"] and "bank_codec" in groups[0].differing
    sizes = group([first, changed(first, memory=20), changed(first, network={**first.config["network"], "width": 4})])
    assert len({each.name for each in sizes}) == 3 and "memory=20" in sizes[1].name
    assert "network.width=4" in sizes[2].name


def test_where_the_data_lies_makes_no_other_group(records):
    assert len(group([records["er-0"], changed(records["er-1"], data_dir="elsewhere")])) == 1


def test_means_and_deviations_are_over_complete_runs(records):
    runs = [records["nncsl-0"], records["nncsl-1"], dataclasses.replace(records["nncsl-1"], summary=None)]
    (each,) = group(runs)
    values = [run.average_accuracy for run in runs[:2]]
    assert each.mean(lambda run: run.average_accuracy) == (statistics.mean(values), statistics.stdev(values))
    (single,) = group(runs[:1])
    assert single.mean(lambda run: run.average_accuracy) == (values[0], None)
    (unfinished,) = group(runs[2:])
    assert unfinished.mean(lambda run: run.average_accuracy) is None


def test_curves_are_means_wherever_any_run_has_a_value(records):
    longer, shorter = records["nncsl-0"], dataclasses.replace(records["nncsl-1"], seen=records["nncsl-1"].seen[:2])
    (each,) = group([longer, shorter])
    curve = each.curve(lambda run: enumerate(run.seen, 1))
    assert [x for x, _ in curve.points] == [1, 2, 3, 4, 5]
    assert curve.points[1][1] == pytest.approx((longer.seen[1] + shorter.seen[1]) / 2)
    assert curve.points[4][1] == longer.seen[4] and curve.deviations[4] == 0


def test_the_verdict_counts_common_seeds(records):
    def with_accuracy(record, seed, accuracy):
        return dataclasses.replace(changed(record, seed=seed), matrix=((accuracy,),))

    ours = [with_accuracy(records["nncsl-0"], seed, value) for seed, value in ((0, 90.0), (1, 80.0), (2, 88.0))]
    theirs = [with_accuracy(records["er-0"], seed, value) for seed, value in ((0, 85.0), (1, 82.0), (7, 70.0))]
    assert verdict(group([*theirs, *ours])) == (
        "nncsl: 86.0 ± 5.3% average accuracy over 3 runs; 7.0 points ahead of er (79.0 ± 7.9%), "
        "and ahead on 1 of 2 common seeds."
    )
    assert verdict(group([dataclasses.replace(ours[0], summary=None)])) == "None of the runs is complete yet."
