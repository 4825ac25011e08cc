"""The paper's values stand beside a run only where the setting is the paper's."""

import pytest

from nncsl import config
from nncsl.config import build
from nncsl.report.paper import published, rows


def settings(preset, **changes):
    return build.plain(config.load(preset, [changes]))


@pytest.mark.parametrize(
    ("preset", "changes", "expected"),
    [
        ("cifar10", {}, (73.2, 0.1)),
        ("cifar10", {"teacher_mode": "model"}, (73.2, 0.1)),
        ("cifar10", {"labels": "40/class"}, (73.2, 0.1)),
        ("cifar10", {"labels": "25%", "memory": 5120}, (81.0, 0.2)),
        ("cifar10", {"memory": 50}, (69.2, None)),
        ("cifar10", {"method": "finetune"}, (13.6, 2.9)),
        ("cifar100", {"method": "csl"}, (23.6, 0.3)),
        ("imagenet100", {"labels": "13/class"}, (29.7, 0.4)),
    ],
)
def test_known_settings(preset, changes, expected):
    assert published(settings(preset, **changes)) == expected


@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        ("digits", {}),
        ("cifar10", {"memory": 600}),
        ("cifar10", {"tasks": 2}),
        ("cifar10", {"labels": "4/class"}),
        ("cifar10", {"teacher_mode": "none"}),
        ("cifar10", {"distillation": "kd"}),
        ("cifar10", {"unlabeled_memory": 5000}),
        ("cifar10", {"task_sizes": [4, 2, 2, 1, 1]}),
        ("cifar100", {"method": "joint", "tasks": 1}),
    ],
)
def test_other_settings_have_no_value(preset, changes):
    assert published(settings(preset, **changes)) is None


def test_no_number_stands_in_the_tables_twice():
    keys = [
        tuple(row[k] for k in ("table", "dataset", "tasks", "method", "memory", "labels", "metric")) for row in rows()
    ]
    assert len(keys) == len(set(keys)) == 196
    assert all(row["value"] == "collapse" or abs(float(row["value"])) < 100 for row in rows())
