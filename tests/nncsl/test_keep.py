"""--keep: what is foreseen is what a run will have kept, and the choice is the best that fits."""

from dataclasses import replace

import numpy as np
import pytest

from nncsl import cli, config, methods, runs
from nncsl.config import build
from nncsl.data.catalog import open_data
from nncsl.data.images import PackedImages
from nncsl.errors import ConfigError
from nncsl.planner.foreseen import Foresight
from nncsl.planner.keeping import choose
from nncsl.record import checkpoint
from nncsl.record.state import RunState
from tests.nncsl.conftest import SMALL

SHORT = ("tasks=2", "unlabeled_batch=160", "epochs=1")
IMAGE = 64 + 16  # a digit and its numbers
MANY_LABELS = ("labels=50%", "unlabeled_fraction=0.1")


def foresight(settings):
    source, tasks = open_data(settings)
    return Foresight(source.train, tasks, settings)


def chosen(small, *settings):
    wish = methods.settled(small(*SHORT, *settings))
    return choose(wish, foresight(wish))


def test_a_run_keeps_exactly_what_was_foreseen_and_its_choice_is_recorded(small, tmp_path, capsys):
    wish = small(
        *SHORT, "keep=300KB", "labels=20/class", "unlabeled_fraction=0.2", "bank_views=3", "unlabeled_memory=30"
    )
    summary = runs.start(wish, tmp_path / "run", quiet=True)
    said = capsys.readouterr().out
    ran = config.read(tmp_path / "run" / "config.yaml")
    seen = foresight(ran)
    assert [sum(parts.values()) for parts in seen.ledgers(ran)] == [each["total"] for each in summary["kept_by_task"]]
    assert summary["keep"] == 300_000 >= summary["kept"]["total"]
    assert replace(ran, head_outputs=0) == choose(wish, seen).config and ran.memory == 200 and ran.bank_codec == "int8"
    assert "memory=200  images in the memory: all that have labels" in said and "bank_codec=int8" in said
    assert "fp16 would make it" in said and "EXCEEDS" not in said

    # Images of many sizes: the same ones are remembered, and count by their own sizes.
    state = RunState.unpack(checkpoint.load(tmp_path / "run" / "checkpoint" / "state.pt")["state"])
    sizes = np.stack([np.arange(2000) % 7 + 1, np.arange(2000) % 3 + 1], axis=1)
    packed = PackedImages(np.zeros(100_000, np.uint8), np.zeros(2000, np.int64), sizes, channels=1)
    _, tasks = open_data(ran)
    expected = sizes.prod(axis=1)[state.memory.ids].sum()
    assert Foresight(packed, tasks, ran).ledgers(ran)[-1]["memory"] == expected


def test_more_room_first_holds_images_then_views_then_bits(small):
    found = [chosen(small, f"keep={size}KB", *MANY_LABELS, "bank_views=3") for size in (60, 700, 1200)]
    settings = [(c.config.memory, c.config.bank_views, c.config.bank_codec) for c in found]
    assert settings == sorted(settings, key=lambda each: (*each[:2], each[2] == "fp16"))
    (least, *_), (most, *_) = settings[0], settings[-1]
    assert settings[0] == (least, 1, "int8") and settings[-1] == (most, 3, "fp16") and least < most
    assert all(choice.kept["total"] <= 1000 * size for choice, size in zip(found, (60, 700, 1200), strict=True))
    assert set(found[-1].reasons.values()) == {"all that have labels", "as configured"}


def test_nothing_more_would_fit_and_every_byte_is_accounted_for(small):
    wish = small(*SHORT, *MANY_LABELS, "keep=60KB", "bank_views=3")
    seen = foresight(wish)
    choice = choose(wish, seen)
    memory = choice.config.memory
    rows = len(seen.tasks[1].unlabeled) * 4 + memory * 2 * 3
    assert choice.kept["total"] == rows * (128 + 2 + 12) + memory * IMAGE <= 60_000
    for more in ({"memory": memory + 1}, {"bank_codec": "fp16"}, {"bank_views": 2}):
        assert seen.peak(replace(choice.config, **more))["total"] > 60_000


def test_views_may_cost_half_of_the_images_and_no_more(small):
    """Of u bytes for a set of unlabeled views, b for an image, and B in all: (B - 2u) / b >= (B - u) / 2b at B = 3u."""
    edge = 3 * len(foresight(small(*SHORT, *MANY_LABELS)).tasks[1].unlabeled) * 4 * 142
    below, above = (chosen(small, f"keep={edge + room}B", *MANY_LABELS).config for room in (-700, 700))
    assert (below.bank_views, above.bank_views) == (1, 2) and above.memory == pytest.approx(below.memory / 2, rel=0.1)


@pytest.mark.parametrize("method", ["nncsl", "icarl", "oewc"])
def test_too_little_is_refused_and_the_least_is_named(small, method):
    settings = (f"method={method}", "labels=50%")
    with pytest.raises(
        ConfigError, match=rf"keep=1KB: too little for {method} .*the least that would do is \d+kB"
    ) as no:
        chosen(small, "keep=1KB", *settings)
    least = int(str(no.value).split("would do is ")[1].split("kB")[0])
    assert chosen(small, f"keep={least}KB", *settings).kept["total"] <= 1000 * least
    with pytest.raises(ConfigError):
        chosen(small, f"keep={least - 1}KB", *settings)


def test_without_a_bank_only_the_memory_is_chosen(small):
    copied = chosen(small, "keep=100KB", "labels=50%", "teacher_mode=model", "bank_views=7")
    assert list(copied.reasons) == ["memory"] and copied.config.bank_views == 7
    assert copied.config.memory == (100_000 - copied.kept["teacher"]) // IMAGE
    logits = chosen(small, "keep=50KB", "labels=50%", "method=derpp")
    assert logits.config.memory == 50_000 // (IMAGE + 8 + 4 * 10)
    assert not chosen(small, "keep=1MB", "method=finetune").reasons


def test_the_plan_alone_says_the_same_and_trains_nothing(small, capsys):
    assert cli.main(["plan", "--keep", "60KB", *(f"--set={each}" for each in (*SMALL, *SHORT, *MANY_LABELS))]) == 0
    assert capsys.readouterr().out.startswith(str(chosen(small, "keep=60KB", *MANY_LABELS)))


def test_memory_and_keep_are_not_given_both(small, capsys):
    with pytest.raises(ConfigError, match="memory=40 and keep=1MB: the latter chooses the former"):
        config.load("digits", map(build.parse_assignment, ("memory=40", "keep=1MB")))
    assert cli.main(["config", "--keep", "40 apples"]) == 2
    assert "keep='40 apples': expected an amount of memory" in capsys.readouterr().err
