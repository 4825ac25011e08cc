"""How many classes a task has: as evenly as they go, or as somebody says."""

import pytest

from nncsl import cli
from nncsl.config import build, load
from nncsl.config import dump as dumped
from nncsl.config import recorded as read_again
from nncsl.data.division import divided, task_sizes
from nncsl.errors import ConfigError


@pytest.mark.parametrize(
    ("classes", "tasks", "sizes"), [(10, 3, (4, 3, 3)), (10, 5, (2,) * 5), (7, 7, (1,) * 7), (11, 4, (3, 3, 3, 2))]
)
def test_classes_divide_as_evenly_as_they_go(classes, tasks, sizes):
    assert divided(classes, tasks) == task_sizes(classes, tasks, None, "digits") == sizes


@pytest.mark.parametrize("text", ["tasks=4,3,3", "tasks=[4, 3, 3]", "task_sizes=[4, 3, 3]"])
def test_sizes_are_a_setting_beside_the_number_of_tasks(text):
    given = build.parse_assignment(text)
    loaded = load("digits", [{"tasks": 3}, given])
    assert (loaded.tasks, loaded.task_sizes) == (3, (4, 3, 3))
    assert read_again(build.plain(loaded)) == loaded and "task_sizes: [4, 3, 3]" in dumped(loaded)
    later = load("digits", [given, {"tasks": 2}])
    assert (later.tasks, later.task_sizes) == (2, None)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tasks": "4,x"}, "tasks='4,x': expected a number of tasks, or how many classes each has"),
        ({"tasks": "5,0,5"}, "1 or more"),
        ({"tasks": "4,3,3", "labels": "4/class,5%"}, "2 budgets for 3 tasks"),
        ({"tasks": 2, "task_sizes": [4, 3, 3]}, "each of 2 tasks"),
        ({"max_pixels": 0}, "max_pixels=0"),
        ({"max_pixels": 10**9}, "max_pixels=1000000000"),
    ],
)
def test_sizes_that_make_no_sense(settings, words):
    with pytest.raises(ConfigError, match=words):
        load("digits", [settings])


def test_the_flag_takes_sizes(capsys):
    assert cli.main(["config", "--tasks", "6,4"]) == 0
    said = capsys.readouterr().out
    assert "tasks: 2\n" in said and "task_sizes: [6, 4]" in said
    assert cli.main(["data", "show", "--tasks", "6,5"]) == 2
    assert "that is 11 classes, but digits has 10" in capsys.readouterr().err
