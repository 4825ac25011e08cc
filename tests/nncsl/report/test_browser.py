"""The report in a real browser: what people see, click on and print."""

import json
import re
from pathlib import Path

import pytest

from nncsl import report

SHOTS = Path(__file__).parents[2] / "artifacts" / "report"
SCREENS = {"desktop": (1280, False), "phone": (390, True)}


@pytest.fixture(scope="module")
def single(runs, tmp_path_factory):
    return report.write([runs["nncsl-0"]], tmp_path_factory.mktemp("single") / "report.html")


@pytest.fixture(scope="module")
def several(runs, killed, tmp_path_factory):
    return report.write([*runs.values(), killed], tmp_path_factory.mktemp("several") / "report.html")


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def column(browser, table, heading):
    """The numbers of a column from top to bottom; None where a cell has none."""
    return browser.run(
        f"""(t => {{ const i = [...t.tHead.rows[0].cells].findIndex(c => c.textContent === {heading!r});
        return [...t.tBodies[0].rows].map(r => r.cells[i].dataset.value ?? null).map(v => v && +v);
        }})(document.querySelector('table[data-name="{table}"]'))"""
    )


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("page", ["single", "several"])
def test_it_loads_without_a_complaint_and_asks_nobody(browser, request, page, screen, dark):
    path = request.getfixturevalue(page)
    width, phone = SCREENS[screen]
    browser.open(path, width=width, phone=phone, dark=dark)
    browser.screenshot(SHOTS / f"{page}-{screen}-{'dark' if dark else 'light'}.png")
    assert browser.complaints == []
    assert [url for url in browser.requests if not url.startswith("data:")] == [path.resolve().as_uri()]
    assert browser.run("document.documentElement.scrollWidth") <= width
    smallest = browser.run(
        """Math.min(...[...document.querySelectorAll('svg text')].map(t =>
        parseFloat(getComputedStyle(t).fontSize) * t.closest('svg').getBoundingClientRect().width
        / t.closest('svg').viewBox.baseVal.width))"""
    )
    assert smallest >= 9
    clipped = browser.run(
        """[...document.querySelectorAll('.chart svg text, .legend')].filter(t => {
        const box = t.getBoundingClientRect(), card = t.closest('figure').getBoundingClientRect();
        return box.left < card.left || box.right > card.right; }).map(t => t.textContent)"""
    )
    assert clipped == []
    page_color, ink = browser.run(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    )
    brightness = [sum(map(int, c.removeprefix("rgb(").rstrip(")").split(","))) for c in (page_color, ink)]
    assert (brightness[0] < brightness[1]) == dark


def test_the_numbers_are_the_run_s(browser, runs, single):
    browser.open(single, width=1280)
    said = summary(runs["nncsl-0"])
    tiles = browser.run(
        "Object.fromEntries([...document.querySelectorAll('.tile')].map(t => [t.dataset.name, +t.dataset.value]))"
    )
    assert tiles["average_accuracy"] == pytest.approx(said["average_accuracy"])
    assert tiles["forgetting"] == pytest.approx(said["forgetting"])
    assert tiles["seconds"] == pytest.approx(said["seconds"])
    assert tiles["peak_memory"] == said["peak_memory"]["total"]

    cells = browser.run(
        """[...document.querySelectorAll('table[data-name="accuracy-matrix"] tbody tr')].map(r =>
        [...r.cells].slice(1).map(c => c.textContent))"""
    )
    expected = [
        [f"{v:.1f}" if j <= i else "" for j, v in enumerate(row)] for i, row in enumerate(said["accuracy_matrix"])
    ]
    assert cells == expected

    points = browser.run("document.querySelector('#seen-accuracy .series').dataset.points")
    assert [float(pair.split(",")[1]) for pair in points.split()] == pytest.approx(said["seen_accuracy"], rel=1e-4)

    memory = browser.run(
        "[...document.querySelectorAll('#memory-split [data-name]')].map(r => [r.dataset.name, +r.dataset.value])"
    )
    assert dict(memory) == {name: size for name, size in said["peak_memory"].items() if name != "total"}

    lines = [json.loads(line) for line in (runs["nncsl-0"] / "metrics.jsonl").read_text().splitlines()]
    epochs = [line for line in lines if line["kind"] == "epoch"]
    shown = browser.run(
        "[...document.querySelectorAll('#losses .series')].map(s => [s.dataset.name, s.dataset.points])"
    )
    assert {name for name, _ in shown} == {"snn", "mem", "lin", "nnd"}
    snn = [float(pair.split(",")[1]) for pair in dict(shown)["snn"].split()]
    assert snn == pytest.approx([line["snn"] for line in epochs], rel=1e-4)
    for chart, key in (("unlabeled-accuracy", "unlabeled_accuracy"), ("learning-rate", "lr")):
        points = browser.run(f"document.querySelector('#{chart} .series').dataset.points")
        assert [float(p.split(",")[1]) for p in points.split()] == pytest.approx(
            [line[key] for line in epochs], rel=1e-4
        )


def test_projections_confusion_views_settings_and_command_are_there(browser, runs, single):
    browser.open(single, width=1280)
    for task in (1, 5):
        counts = browser.run(f"[...document.querySelectorAll('#projections-{task} .group')].map(g => +g.dataset.count)")
        assert len(counts) == 10 and sum(counts) == 500
    assert browser.run("document.querySelectorAll('#projections-1 .faded').length") == 8
    confusion = browser.run(
        """[...document.querySelectorAll('table[data-name="confusion"] tbody tr')].map(r =>
        [...r.cells].slice(1).map(c => +c.textContent))"""
    )
    right = sum(confusion[i][i] for i in range(10)) / sum(map(sum, confusion))
    assert 100 * right == pytest.approx(summary(runs["nncsl-0"])["seen_accuracy"][-1])
    broken = browser.run("[...document.images].filter(i => !i.complete || !i.naturalWidth).length")
    assert browser.run("document.images.length") >= 17 and broken == 0
    assert "bank_views" in browser.run("document.querySelector('#configuration').textContent")
    command = browser.run("document.querySelector('#command code').textContent")
    assert command == (runs["nncsl-0"] / "command.txt").read_text().strip()
    assert command.startswith("nncsl train --quiet --out ") and "--set epochs=2" in command


def test_values_appear_under_the_pointer(browser, runs, single):
    browser.open(single, width=1280)
    assert browser.run("document.querySelector('#seen-accuracy .readout').hidden")
    browser.hover("document.querySelector('#seen-accuracy .chart')")
    shown = browser.run("document.querySelector('#seen-accuracy .readout').textContent")
    seen = summary(runs["nncsl-0"])["seen_accuracy"]
    assert shown == f"tasks learned 3seen accuracy {float(f'{seen[2]:.4g}'):g}"


def test_a_comparison_can_be_sorted_by_clicking(browser, runs, several):
    browser.open(several, width=1280)
    average = column(browser, "groups", "average accuracy")
    assert len(average) == 3 and average[2] is None and average[0] > average[1]  # the killed run's group has no mean
    heading = (
        "[...document.querySelectorAll('table[data-name=\"groups\"] th')].find(h => h.textContent === 'forgetting')"
    )
    forgetting = column(browser, "groups", "forgetting")
    browser.click(f"{heading}.querySelector('button')")
    rising = column(browser, "groups", "forgetting")
    assert rising == [*sorted(forgetting[:2]), None]
    assert browser.run(f"{heading}.getAttribute('aria-sort')") == "ascending"
    browser.click(f"{heading}.querySelector('button')")
    assert column(browser, "groups", "forgetting") == [*sorted(forgetting[:2], reverse=True), None]
    assert browser.run("document.querySelectorAll('table[data-name=\"groups\"] th[aria-sort]').length") == 1

    names = "[...document.querySelectorAll('table[data-name=\"runs\"] td:first-child')].map(c => c.textContent)"
    before = browser.run(names)
    browser.click("document.querySelector('table[data-name=\"runs\"] th button')")
    assert browser.run(names) == sorted(before)
    assert browser.complaints == []


def test_on_a_phone_the_headings_still_sort(browser, several):
    browser.open(several, width=390, phone=True)
    browser.click(
        "[...document.querySelectorAll('table[data-name=\"groups\"] button')].find(b => b.textContent === 'time')"
    )
    times = column(browser, "groups", "time")
    assert times == [*sorted(times[:2]), None]


def test_a_comparison_shows_means_and_deviations(browser, runs, several):
    browser.open(several, width=1280)
    values = [summary(runs[f"nncsl-{seed}"])["average_accuracy"] for seed in (0, 1)]
    mean, deviation = sum(values) / 2, abs(values[0] - values[1]) / 2**0.5
    cells = browser.run(
        """[...document.querySelectorAll('table[data-name="groups"] tbody tr')].map(r =>
        Object.fromEntries([...r.cells].map(c => [c.dataset.label, c.textContent])))"""
    )
    ours = next(row for row in cells if row["method"] == "nncsl" and row["runs"] == "2")
    assert ours["average accuracy"] == f"{mean:.1f} ± {deviation:.1f}"
    assert [row["runs"] for row in cells if "unfinished" in row["runs"]] == ["0 (+1 unfinished)"]
    lines = browser.run("[...document.querySelectorAll('#seen-accuracy .series')].map(s => s.dataset.name)")
    assert len(lines) == 3 and lines[0].startswith("er")
    assert browser.run("document.querySelectorAll('#seen-accuracy .band').length") == 2


def test_it_is_complete_without_scripts(browser, single):
    browser.open(single, width=1280, scripts=False)
    assert browser.run("document.querySelectorAll('.chart .series').length") >= 10
    assert browser.run("document.querySelectorAll('.readout').length") == 0


def test_it_prints_on_a_few_pages_and_in_dark_ink(browser, single):
    browser.open(single, width=1280, dark=True)
    pdf = browser.print()
    (SHOTS / "single.pdf").write_bytes(pdf)
    assert pdf.startswith(b"%PDF") and 2 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 8
    browser.open(single, width=1280, dark=True, media="print")
    assert browser.run("getComputedStyle(document.body).color") == "rgb(20, 24, 29)"
