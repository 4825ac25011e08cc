"""What the pages and the help tell people to type works: it is typed here, with fewer epochs where it would take long.

Commands run in a folder that has what they speak of: a digits run, a CIFAR run, a folder of images, a data folder. What
can't run is resolved as far as possible, and its name in the test report says why.
"""

import argparse
import importlib.util
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images

from nncsl import cli, methods
from nncsl.cli.settings import configuration
from nncsl.data import cifar, sources
from nncsl.data.catalog import check_known

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])

OWN_TESTS = ("extending.md", "use.md", "data.md")  # of pages whose scripts need what lies in a folder

# Put behind every training command: minutes or days become seconds, and everything else stays as it is written.
SHORT = [
    *("--quiet", "--epochs", "1", "--tasks", "2", "--labels", "4/class", "--memory", "20", "--bank-views", "1"),
    *("--set", "network.width=4", "--set", "network.hidden=16", "--set", "unlabeled_batch=64"),
    *("--set", "verify_data=false"),
]

# The report takes most of a short run's time, and is the same for all: the plain command and the prepared run write it.
NO_REPORT = ["--no-report"]

SHORT_PRETRAINING = ["--quiet", "--epochs", "1", *SHORT[SHORT.index("--set") :]]

# Why a command is resolved but not run, by the part of it that tells.
NOT_RUN = {
    r"^bench (?!.*--help)": "takes minutes; the benchmarks' own tests run short forms",
    r"^(train|plan|data) .*imagenet100": "needs ImageNet, or minutes for its network",
    r"--device cuda": "needs a GPU",
    r"--ranks": "starts processes; test_ranks_end.py does",
    r"^train .*backbone=resnet": "takes half a minute; use/test_backbones.py trains one",
}


def shortened(words):
    """What makes a command short; --keep chooses the memory itself."""
    place = SHORT.index("--memory")
    return [*SHORT[:place], *SHORT[place + 2 :]] if "--keep" in words else SHORT


def shell_lines(text):
    """The lines of indented blocks, and of fenced ones that are not Python, without prompts and redirections."""
    blocks = re.findall(r"^```(?:sh|bash|console)?\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    lines = re.findall(r"^    (\S.*)$", text, flags=re.MULTILINE)
    lines += [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
    return [line.split(" > ")[0] for line in lines]


def parsers(parser, name="nncsl"):
    """The parser and those of its sub-commands, with their names."""
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for part, inner in action.choices.items():
                yield from parsers(inner, f"{name} {part}")


def commands():
    """Every ``nncsl`` command of pages and help, once, named by where it was found first."""
    found = {}
    for page in PAGES:
        for line in shell_lines(page.read_text()):
            found.setdefault(line, page.name)
    for name, parser in parsers(cli.build_parser()):
        for line in shell_lines((parser.epilog or "").replace("\n", "\n  ")):
            found.setdefault(line, f"{name} --help")
    cases = {}
    for line, place in found.items():
        if line.startswith("nncsl "):
            cases.setdefault(tuple(shlex.split(line, comments=True)[1:]), place)
    for words, place in cases.items():
        why = next((reason for part, reason in NOT_RUN.items() if re.search(part, " ".join(words))), None)
        note = f" [not run: {why}]" if why else ""
        yield pytest.param(list(words), why, id=f"{place}: nncsl {' '.join(words)}{note}")


def python_blocks(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """What the commands speak of: DATA, my-images, and runs that are there already."""
    folder = tmp_path_factory.mktemp("docs")
    photos = np.stack([np.asarray(photo)[:416, :640] for photo in load_sample_images().images])
    tiles = photos.reshape(2, 13, 32, 20, 32, 3).swapaxes(2, 3).reshape(520, 32, 32, 3)
    batches = folder / "DATA" / "cifar-10-batches-bin"  # tiles of photographs in the format of CIFAR-10
    batches.mkdir(parents=True)
    planar = tiles[:240].transpose(0, 3, 1, 2).reshape(240, -1)
    records = np.concatenate([np.arange(240)[:, None] % 10, planar], axis=1).astype(np.uint8)
    for part, name in enumerate(cifar.CIFAR10.binary_files):
        (batches / name).write_bytes(records[part * 40 : part * 40 + 40].tobytes())
    (batches / "batches.meta.txt").write_text("\n".join("abcdefghij") + "\n")
    for number, tile in enumerate(tiles[:48]):
        path = folder / "my-images" / "abcd"[number % 4] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(tile).save(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(python_blocks(ROOT / "docs" / "use.md")[0], {})  # writes digits/, first/, later/, unseen/
        exec(python_blocks(ROOT / "docs" / "data.md")[0], {})  # writes images.csv, pets.parquet, labeled.txt
        assert cli.main(["train", *SHORT]) == 0
        assert cli.main(["train", "--preset", "cifar10", "--data-dir", "DATA", *SHORT, *NO_REPORT]) == 0
        lines = shell_lines((ROOT / "docs" / "use.md").read_text())
        (story,) = [line for line in lines if re.fullmatch(r"nncsl train .* --out runs/story", line)]
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        assert cli.main([*shlex.split(story)[1:], *SHORT, *NO_REPORT]) == 0
        assert cli.main(["train", "--continue", "runs/story", "--dataset", "folder:later", "--quiet", *NO_REPORT]) == 0
        assert cli.main(["pretrain", "--dataset", "digits", "--out", "digits.safetensors", *SHORT_PRETRAINING]) == 0
        shutil.copytree("runs/digits-nncsl-seed0", "runs/first")
        shutil.copytree("runs/digits-nncsl-seed0", "runs/half-done", ignore=shutil.ignore_patterns("summary.json"))
    return folder


@pytest.fixture
def here(prepared, tmp_path, monkeypatch):
    """A copy of the prepared folder as the current one."""
    folder = shutil.copytree(prepared, tmp_path / "here")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def run(words):
    """Runs one command as it stands, training shortened; checks that it ended well and wrote what it was told to."""
    words = [name for word in words for name in (sorted(map(str, Path().glob(word))) if "*" in word else [word])]
    flags = ("--out", "-o", "--csv", "--sheet", "--to")
    out = next((Path(words[at + 1]) for at, word in enumerate(words) if word in flags), None)
    if words[0] == "train" and out is not None:
        shutil.rmtree(out, ignore_errors=True)
    if words[0] == "pretrain":
        out.unlink(missing_ok=True)
        words = [*words, *SHORT_PRETRAINING]
    if words[0] == "train":
        goes_on = "--resume" in words or "--continue" in words
        if not goes_on:  # as written it must be possible, too: what is shortened may hide a mistake
            check_known(configuration(cli.build_parser().parse_args(words)))
        plain = words == ["train"]
        words = [*words, *(["--quiet"] if goes_on else shortened(words)), *([] if plain else NO_REPORT)]
    elif words[0] == "plan":
        words = [*words, *shortened(words)[1:]]
    elif words[0] == "data" and "DATA" in words:
        words = [*words, "--set", "verify_data=false", "--set", "labels=4/class", "--set", "memory=20"]
    try:
        code = cli.main(words)
    except SystemExit as ended:  # --help and --version
        code = ended.code
    assert code == 0
    assert out is None or out.exists()


@pytest.mark.parametrize(("words", "why_not"), list(commands()))
def test_commands_do_what_they_say(here, words, why_not, capsys):
    if why_not is None:
        run(words)
        return
    arguments = cli.build_parser().parse_args(words)
    assert callable(arguments.run)
    if hasattr(arguments, "preset"):
        check_known(configuration(arguments))
    if hasattr(arguments, "benchmark"):
        assert importlib.util.find_spec(f"benchmarks.{arguments.benchmark}")


def test_most_commands_are_run():
    """So that the list of excuses can't grow unseen."""
    excused = [case.id for case in commands() if case.values[1]]
    assert len(excused) <= 12 and len(excused) < len(list(commands())) / 2, excused


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_within_sentences_exist(page):
    """`nncsl eval DIR` and the like: as far as their words are not names for something else."""
    for line in re.findall(r"`nncsl ([^`]*)`", page.read_text()):
        parser = cli.build_parser()
        for word in line.split():
            known = dict(parsers(parser, "")) if word.islower() and not word.startswith("-") else {}
            if not (inner := [name for name in known if name]):
                break
            assert f" {word}" in inner, f"nncsl {line}"
            parser = known[f" {word}"]


@pytest.mark.parametrize("name", [name for name, _ in parsers(cli.build_parser()) if name != "nncsl"])
def test_every_command_has_examples_in_its_help(name):
    assert f"examples:\n  {name}" in (dict(parsers(cli.build_parser()))[name].epilog or "")


def test_exit_codes_are_the_same_in_help_and_page():
    codes = re.findall(r"^\| (\d+) \|", (ROOT / "docs" / "cli.md").read_text(), flags=re.MULTILINE)
    assert re.findall(r"(?:codes:|[;,])\s+(\d+) ", cli.build_parser().epilog.replace("\n", " ")) == codes


def test_modules_and_files_that_commands_name_exist():
    for page in PAGES:
        text = page.read_text()
        for module in re.findall(r"python -m (benchmarks[\w.]*)", text):
            assert module == "benchmarks.NAME"[: len(module)] or importlib.util.find_spec(module), (page.name, module)
        for path in re.findall(r"pytest (tests/\S+)", text):
            assert (ROOT / path).exists(), (page.name, path)


def test_extras_that_pages_and_errors_name_exist():
    section = (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]")[1].split("\n[")[0]
    extras = set(re.findall(r"^(\w+) = ", section, flags=re.MULTILINE))
    texts = [
        path.read_text() for path in (*PAGES, *(ROOT / "nncsl").rglob("*.py"), *(ROOT / "featurebank").glob("*.py"))
    ]
    named = {name for text in texts for name in re.findall(r'(?:nncsl|"\.)\[(\w+)\]', text)}
    assert {"cpu", "gpu", "tensorboard", "completion", "export", "hf", "backbones"} <= named <= extras


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in OWN_TESTS], ids=lambda page: page.name)
def test_python_of_the_pages_runs(page, tmp_path, monkeypatch):
    """The blocks of a page one after the other, with the tensors they speak of."""
    monkeypatch.chdir(tmp_path)
    blocks = python_blocks(page)
    generator = torch.Generator().manual_seed(0)
    names = {
        "model": torch.nn.Linear(4, 4),
        "queries": torch.randn(8, 128, generator=generator),
        "supports": torch.randn(20, 128, generator=generator),
        "teacher_queries": torch.randn(8, 128, generator=generator),
        "teacher_supports": torch.randn(20, 128, generator=generator),
        "labels": torch.arange(20) % 10,
        "ids": torch.arange(20),
        "slots": torch.zeros(20, dtype=torch.int64),
        "features": torch.randn(20, 128, generator=generator),
        "others": torch.randn(20, 128, generator=generator),
    }
    for block in blocks:
        exec(compile(block, page.name, "exec"), names)
    if page.name == "README.md":
        assert len(blocks) == 2
        assert names["probabilities"].shape == (8, 10) and names["loss"].isfinite()
        assert names["vectors"].shape == (20, 128)


def test_the_python_of_the_page_on_using_a_run_runs(here, capsys):
    """Its commands that export, then its scripts in their order."""
    page = ROOT / "docs" / "use.md"
    for line in shell_lines(page.read_text()):
        if line.startswith("nncsl export"):
            run(shlex.split(line)[1:])
    names = {}
    for block in python_blocks(page):
        exec(compile(block, page.name, "exec"), names)
    assert names["found"].probabilities.shape == (2, 10) and names["probabilities"].shape == (1, 10)
    assert names["facts"]["classes"] == list("0123456789")


@pytest.mark.parametrize("name", ["my_method.py", "my_data.py"])
def test_the_scripts_of_the_extending_page_run(here, name, monkeypatch, capsys):
    """The script as printed, then its commands in their order."""
    text = (ROOT / "docs" / "extending.md").read_text()
    block = re.search(rf"```python\n(# {name}\n.*?)```", text, flags=re.DOTALL)[1]
    Path(name).write_text(block)
    lines = [shlex.split(line) for line in shell_lines(text) if line.startswith(f"python {name} ")]
    assert len(lines) >= 2 and any("train" in words for words in lines)
    for registry in (methods.METHODS, sources.SOURCES):  # what the script adds must not outlive this test
        for key in ("prototypes", "photo-tiles"):
            monkeypatch.setitem(registry, key, None)
            monkeypatch.delitem(registry, key)
    for words in lines:
        monkeypatch.setattr(sys, "argv", [*words[1:], *([*SHORT, *NO_REPORT] if "train" in words else [])])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(name, run_name="__main__")
        assert ended.value.code == 0, capsys.readouterr().err
    runs = {path.parent.name for path in Path("runs").glob("*/summary.json")}
    assert runs & {"digits-prototypes-seed0", "photo-tiles-nncsl-seed0"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


def test_make_targets_of_the_readme_exist():
    text = (ROOT / "README.md").read_text()
    for target in set(re.findall(r"^    make (\w+)", text, flags=re.MULTILINE)):
        shown = subprocess.run(["make", "-n", "VENV=absent", target], cwd=ROOT, capture_output=True, text=True)
        assert shown.returncode == 0, shown.stderr
