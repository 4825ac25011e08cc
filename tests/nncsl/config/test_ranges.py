"""Every setting has a row in the one table; by it values are checked, explained and documented."""

import dataclasses

import pytest

from nncsl import cli, config
from nncsl.config import NetworkConfig, build, explain
from nncsl.config.ranges import rows_of
from nncsl.config.table import TABLE
from nncsl.data.policy import Crop, ViewPolicy
from nncsl.errors import ConfigError
from nncsl.methods import METHODS

SETTINGS = {each.__name__: each for each in (config.Config, NetworkConfig, ViewPolicy, Crop)}
SETTINGS |= {method.Settings.__name__: method.Settings for method in METHODS.values()}


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_is_in_the_table(name):
    missing = {field.name for field in dataclasses.fields(SETTINGS[name])} - set(rows_of(SETTINGS[name]))
    assert not missing, f"add to nncsl/config/table.py, {name}: {', '.join(sorted(missing))}"


def test_the_table_has_no_other_settings():
    derived = {base.__name__: base for each in SETTINGS.values() for base in each.__mro__}
    for name, rows in TABLE.items():
        assert set(rows) <= {field.name for field in dataclasses.fields(derived[name])}, name


def test_numbers_have_a_range():
    for name, settings in SETTINGS.items():
        rows = rows_of(settings)
        for field in dataclasses.fields(settings):
            if str(field.type).startswith(("int", "float", "tuple")) or field.type in (int, float):
                assert rows[field.name].range is not None, f"{name}.{field.name} has no range"


def test_the_page_is_written_from_the_table():
    assert explain.PAGE.read_text() == explain.page(), "run python -m nncsl.config.explain"


def load(*assignments):
    return config.load("digits", map(build.parse_assignment, assignments))


@pytest.mark.parametrize(
    ("assignments", "words"),
    [
        (["epochs=" + "9" * 400], ["epochs=999", "up to 1,000,000"]),
        (["epochs=" + "9" * 5000], ["not valid yaml"]),
        (["memory=0x" + "f" * 5000], ["memory", "too long to show", "up to"]),
        ([f"seed={2**64}"], ["seed=18446744073709551616", "2**63 - 1"]),
        (["tau=.inf"], ["tau=inf", "finite"]),
        (["tau=.nan"], ["tau=nan", "finite"]),
        (["tau=" + "9" * 400], ["tau=inf", "finite"]),
        (["cache_short_side=-5"], ["cache_short_side=-5", "1 or more"]),
        (["network.blocks=[1,0]"], ["network.blocks=0", "1 or more"]),
        (["views.mean=[.inf]"], ["views.mean=inf"]),
        (["views.large.size=5000"], ["views.large.size=5000", "4,096"]),
        (["method=er", "own.lr=.nan"], ["own.lr=nan", "finite"]),
        (["method=ordisco", "own.gan_betas=[0.5,1]"], ["own.gan_betas=1.0", "under 1"]),
        (["method=foster", "own.lr=-1"], ["own.lr=-1", "above 0"]),
        (["data_dir=" + "x" * 256], ["data_dir", "256 bytes"]),
        (["dataset=folder:" + "x" * 300], ["dataset", "bytes"]),
        (["data_dir=a\udcffb"], ["data_dir", "not valid yaml"]),
        (['labels="\\e[2J"'], ["labels", "control"]),
        (["labels=1.2.3%"], ["labels='1.2.3%'"]),
        (["labels=" + "9" * 5000 + "/class"], ["labels"]),
        (["a.b.c.d.e=1"], ["at most 4 parts"]),
        (["epochs=&a [*a]"], ["aliases"]),
        (["epochs=" + "[" * 3000], ["too deeply nested"]),
        (["epochs=2001-99-99"], ["not valid yaml"]),
        (["memory_budget='2'"], ["2 bytes", "did you mean 2GB"]),
        (["lr=3"], ["unknown setting lr", "lr_peak"]),
        (["method=nncls"], ["did you mean nncsl"]),
        (["teacher_mode=modle"], ["did you mean model"]),
        (["dataset=[1]"], ["dataset=[1]", "str"]),
    ],
)
def test_what_can_not_be_is_refused_by_name(assignments, words):
    with pytest.raises(ConfigError) as error:
        load(*assignments)
    assert all(word in str(error.value) for word in words), str(error.value)
    assert len(str(error.value)) < 400


def test_a_long_list_of_label_budgets_is_no_file():
    assert load("tasks=10", "labels=" + ",".join(["0.123456789012%"] * 10)).tasks == 10


def test_explain_says_what_the_page_says(capsys):
    assert cli.main(["config", "--explain", "tau"]) == 0
    said = capsys.readouterr().out
    assert said == "tau: temperature of nearest-neighbor assignments; above 0, up to 10,000; default 0.1\n"
    assert cli.main(["config", "--explain", "views.large"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert cli.main(["config", "--explain"]) == 0
    said = capsys.readouterr().out
    assert all(row.key in said for rows in explain.explained().values() for row in rows)
    assert cli.main(["config", "--explain", "lr"]) == 2
    assert "lr_peak" in capsys.readouterr().err


def test_a_bomb_in_a_configuration_is_refused(tmp_path):
    lines = ["own: {a0: &a0 [x, x]"] + [f", a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40)] + ["}"]
    (tmp_path / "config.yaml").write_text("".join(lines))
    with pytest.raises(ConfigError, match=r"config\.yaml.*aliases"):
        config.read(tmp_path / "config.yaml")


@pytest.mark.parametrize("content", ["", "7", "[1]", "{a: 1", "\x00", "dataset: digits"])
def test_a_damaged_configuration_is_named(tmp_path, content):
    (tmp_path / "config.yaml").write_text(content)
    with pytest.raises(ConfigError, match=r"config\.yaml") as error:
        config.read(tmp_path / "config.yaml")
    assert len(str(error.value).splitlines()) == 1
