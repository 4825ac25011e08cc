"""The command as users meet it: real processes, their output and exit codes."""

import os
import subprocess
import sys
from importlib import metadata

import numpy as np
import pytest
import yaml
from PIL import Image


def nncsl(*arguments, cwd=None, **environment):
    return subprocess.run(
        [sys.executable, "-m", "nncsl", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=240,
        env={**os.environ, "COLUMNS": "120", **environment},
    )


def test_version_names_everything_and_the_device():
    shown = nncsl("--version")
    assert shown.returncode == 0
    lines = dict(line.split(None, 1) for line in shown.stdout.splitlines())
    assert lines["torch"] == metadata.version("torch")
    assert {"nncsl", "python", "torchvision", "triton", "numpy", "h5py", "faiss", "device"} <= set(lines)
    assert lines["device"].startswith(("cpu", "cuda"))


@pytest.mark.parametrize(
    "command",
    [
        *([], ["train"], ["eval"], ["metrics"], ["config"], ["data"], ["data", "prepare"], ["data", "show"], ["bank"]),
        *(["bank", "query"], ["bench"], ["completion"], ["predict"], ["export"], ["doctor"]),
    ],
)
def test_help_is_there_for_every_command(command):
    shown = nncsl(*command, "--help")
    assert shown.returncode == 0 and "usage: nncsl" in shown.stdout and not shown.stderr


def test_help_does_not_load_torch():
    code = "import sys; from nncsl.cli import main\ntry: main(['train', '--help'])\nexcept SystemExit: pass\n"
    loaded = subprocess.run(
        [sys.executable, "-c", code + "print('torch' in sys.modules)"], capture_output=True, text=True
    )
    assert loaded.stdout.splitlines()[-1] == "False"


def test_config_prints_what_a_run_would_use():
    shown = nncsl("config", "--preset", "cifar100", "--set", "epochs=10", "--memory", "5120")
    resolved = yaml.safe_load(shown.stdout)
    assert (resolved["dataset"], resolved["epochs"], resolved["memory"]) == ("cifar100", 10, 5120)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["config", "--set", "epoch=3"], "did you mean epochs"),
        (["config", "--tasks", "11"], "10 classes"),
        (["config", "--memory", "3"], "8 classes"),
        (["train", "--dataset", "cifar10", "--out", "unused"], "--data-dir"),
        (["data", "prepare", "folder:absent"], "absent is not a folder"),
        (["train", "--preset", "nope"], "unknown preset"),
    ],
)
def test_mistakes_end_with_one_line_and_exit_code_2(arguments, words, tmp_path):
    ended = nncsl(*arguments, cwd=tmp_path)
    assert ended.returncode == 2
    assert words in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1 and "Traceback" not in ended.stderr
    assert not list(tmp_path.iterdir())


def test_data_list_and_prepare():
    listed = nncsl("data", "list").stdout
    assert all(name in listed for name in ("digits", "cifar10", "cifar100", "imagenet100", "folder:PATH"))
    assert "1297 training and 500 test images in 10 classes" in nncsl("data", "prepare", "digits").stdout


def test_missing_cifar_says_which_files_go_where(tmp_path):
    """Without a network the download fails; where there is one this would fetch 170 MB, so it is cut off."""
    ended = nncsl("data", "prepare", "cifar10", "--data-dir", tmp_path, https_proxy="http://127.0.0.1:9")
    assert ended.returncode == 2
    assert "cifar-10-batches-py" in ended.stderr and "data_batch_1" in ended.stderr
    assert not list(tmp_path.iterdir())


def test_data_show_writes_sheets_a_person_can_look_at(tmp_path):
    shown = nncsl("data", "show", "--out", tmp_path / "sheets")
    assert shown.returncode == 0, shown.stderr
    for path in shown.stdout.split():
        pixels = np.asarray(Image.open(path).convert("L"))
        assert min(pixels.shape) > 300 and pixels.std() > 10
    blocked = tmp_path / "file"
    blocked.write_text("")
    refused = nncsl("data", "show", "--out", blocked / "sheets")
    assert refused.returncode == 2 and "choose another --out" in refused.stderr


def test_a_reader_that_goes_away_is_no_error():
    """`nncsl data list | head -1` and the like."""
    command = [sys.executable, "-m", "nncsl", "data", "list"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert process.stderr.read() == "" and process.wait(timeout=60) == 0


def test_a_run_that_is_not_there_names_those_that_are(tmp_path):
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "runs" / "first" / "config.yaml").write_text("")
    ended = nncsl("train", "--resume", "runs/frist", cwd=tmp_path)
    assert ended.returncode == 2 and "does not exist; runs here: runs/first" in ended.stderr
