"""Charts as markup: every number at its place."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from nncsl.report import marks, scales
from nncsl.report.charts import Series, line_chart, scatter, shaded_grid
from nncsl.report.heat import heat_table
from nncsl.report.html import Cell, table


def parse(markup):
    return ElementTree.fromstring(f"<div>{markup}</div>")


def corners(path):
    return [tuple(map(float, pair.split())) for pair in re.split("[ML]", path.removesuffix("z"))[1:]]


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-0.7, 1.66), (82, 100), (0.001, 0.03), (3, 3), (0, 0), (-5, -4.99)])
def test_ticks_are_round_and_enclose_the_data(low, high):
    found = scales.ticks(low, high)
    assert found[0] <= low and found[-1] >= high and 2 <= len(found) <= 8
    steps = np.diff(found)
    assert np.allclose(steps, steps[0]) and f"{steps[0]:.1e}"[:3] in ("1.0", "2.0", "2.5", "5.0")


def test_lines_go_through_their_points():
    drawn = parse(
        line_chart([Series("a", [(1, 0.0), (2, 50.0), (3, 100.0)])], x_label="task", y_label="%", ceiling=100)
    )
    (series,) = [g for g in drawn.iter("g") if g.get("class", "").startswith("series")]
    assert series.get("data-points") == "1,0 2,50 3,100"
    (x1, y1), (x2, y2), (x3, y3) = corners(series.find("path").get("d"))
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2) and y1 - y2 == pytest.approx(y2 - y3, abs=0.2) and y3 < y1
    rules = {t.text: float(t.get("y")) - 4 for t in drawn.iter("text") if t.get("class") == "tick end"}
    assert rules["0"] == pytest.approx(y1, abs=0.2) and rules["100"] == pytest.approx(y3, abs=0.2)


def test_a_band_reaches_one_deviation_up_and_down_but_not_beyond_the_possible():
    series = Series("a", [(1, 90.0), (2, 50.0)], [20.0, 10.0])
    drawn = parse(line_chart([series], x_label="task", y_label="%", ceiling=100))
    rules = {t.text: float(t.get("y")) - 4 for t in drawn.iter("text") if t.get("class") == "tick end"}
    (band,) = [p for p in drawn.iter("path") if p.get("class", "").startswith("band")]
    (_, top1), (_, top2), (_, bottom2), (_, bottom1) = corners(band.get("d"))
    per_point = (rules["40"] - rules["100"]) / 60
    assert top1 == pytest.approx(rules["100"], abs=0.2) and bottom1 - top1 == pytest.approx(30 * per_point, abs=0.2)
    assert bottom2 - top2 == pytest.approx(20 * per_point, abs=0.2)


def test_a_series_without_points_keeps_its_color_to_itself():
    """The same method has the same color in every chart, also where another recorded nothing."""
    some = [Series("er", []), Series("nncsl", [(1, 2.0), (2, 1.0)])]
    drawn = parse(line_chart(some, x_label="epoch", y_label="loss"))
    (series,) = [g for g in drawn.iter("g") if g.get("class", "").startswith("series")]
    assert series.get("class") == "series c2"
    assert line_chart([Series("er", [])], x_label="epoch", y_label="loss") == ""


def test_lines_differ_in_more_than_color():
    looks = {(marks.dash(i), marks.marker(i, 0, 0, 4)) for i in range(12)}
    assert len(looks) == 12
    assert all(marks.marker(i, 0, 0, 4) != marks.marker(i + marks.COLORS, 0, 0, 4) for i in range(8))


def test_names_from_a_run_stay_text():
    evil = '<script>alert("x")</script>'
    series = [Series(evil, [(1, 1.0), (2, 2.0)]), Series("b", [(1, 1.0)])]
    shown = line_chart(series, x_label=evil, y_label=evil)
    shown += scatter(np.random.default_rng(0).normal(size=(20, 2)), [0] * 20, [evil], [False], label=evil)
    shown += heat_table([[1.0]], rows=[evil], columns=[evil], corner=evil, name="n", highest=[1.0])
    shown += table([evil], [[evil], [Cell("1", 1.0)]], name="t", sortable=True)
    assert "<script" not in shown
    parse(shown)


def test_scatter_keeps_every_point_of_every_group():
    rng = np.random.default_rng(1)
    drawn = parse(
        scatter(rng.normal(size=(30, 2)), [i % 3 for i in range(30)], ["a", "b", "c"], [False, True, False], label="x")
    )
    groups = [g for g in drawn.iter("g") if "group" in g.get("class", "")]
    assert [(g.get("data-name"), g.get("data-count")) for g in groups] == [("a", "10"), ("b", "10"), ("c", "10")]
    assert [("faded" in g.get("class")) for g in groups] == [False, True, False]
    assert all(g.find("path").get("d").count("M") == 10 for g in groups)


def test_a_large_matrix_shades_each_row_by_its_shares():
    counts = np.zeros((30, 30), dtype=int)
    counts[np.arange(30), np.arange(30)] = 8
    counts[3, 7] = 2
    cells = [
        r for r in parse(shaded_grid(counts, [f"n{i}" for i in range(30)], label="x")).iter("rect") if r.get("style")
    ]
    assert len(cells) == 31
    (wrong,) = [r for r in cells if (r.get("x"), r.get("y")) == ("7", "3")]
    assert wrong.get("style") == "--v:0.20" and wrong.find("title").text == "n3 taken for n7: 2"


@pytest.mark.parametrize(("seconds", "words"), [(59, "59 s"), (150, "2 min"), (7500, "2 h 05 min")])
def test_durations_as_people_say_them(seconds, words):
    assert scales.duration(seconds) == words


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0 B"), (382_000, "382 kB"), (2_370_000, "2.37 MB"), (5.4e10, "54 GB")]
)
def test_sizes_as_people_say_them(number, words):
    assert scales.size(number) == words


def test_an_axis_of_percents_ends_at_100_also_where_all_is_right():
    drawn = parse(line_chart([Series("a", [(1, 100.0), (2, 100.0)])], x_label="task", y_label="%", ceiling=100))
    shown = [float(t.text) for t in drawn.iter("text") if t.get("class") == "tick end"]
    assert max(shown) == 100 and min(shown) == 0


def test_names_among_points_do_not_cover_each_other():
    """Ten heaps on one spot: as many names as there is room for, the others are in the legend."""
    points = np.random.default_rng(0).normal(size=(200, 2))
    names = [f"a class named {i}" for i in range(9)] + ["名前の長いクラス"]
    drawn = parse(scatter(points, [i % 10 for i in range(200)], names, [False] * 10, label="x"))
    placed = [(float(t.get("x")), float(t.get("y")), 8 * len(t.text)) for t in drawn.iter("text")]
    assert len(placed) > 5
    for i, (x, y, wide) in enumerate(placed):
        assert x - wide / 2 + 8 >= 0 and x + wide / 2 - 8 <= 420
        for other_x, other_y, other in placed[:i]:
            assert abs(y - other_y) > 15 or abs(x - other_x) >= (wide + other) / 2
