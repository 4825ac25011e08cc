"""``nncsl bank`` on the bank of a real run: what it prints, what it writes, how it ends."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from nncsl import banks, cli
from nncsl.banks import query as querying
from nncsl.data.sources import SourceOptions, open_source
from nncsl.featurebank import FeatureBank
from nncsl.record import checkpoint


@pytest.fixture
def bank_command(capsys):
    """A function from arguments to (exit code, standard output, standard error)."""

    def call(*arguments):
        code = cli.main(["bank", *map(str, arguments)])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return call


@pytest.fixture
def alone(trained, tmp_path):
    """A copy of the bank outside any run."""
    return shutil.copytree(trained / "bank", tmp_path / "alone")


def test_info_tells_what_the_run_wrote(bank_command, trained):
    code, out, _ = bank_command("info", trained, "--json")
    found = json.loads(out)
    state = checkpoint.load(trained / "checkpoint" / "state.pt")
    (generation,) = found["generations"]
    assert code == 0 and generation["task"] == 1 and generation["codec"] == "fp16" and generation["dim"] == 128
    # Ten of the digits' classes in two tasks: the second one's images, and 20 remembered ones.
    assert set(generation["roles"]) == {"unlabeled", "replay"} and generation["roles"]["replay"]["images"] == 20
    assert generation["rows"] == sum(role["rows"] for role in generation["roles"].values())
    assert generation["bytes"] == sum(path.stat().st_size for path in (trained / "bank" / "shards").iterdir())
    assert found["teacher_network_bytes"] == sum(t.numel() * t.element_size() for t in state["method"].values())


def test_info_for_a_person_names_fingerprint_roles_and_the_comparison(bank_command, trained):
    code, out, _ = bank_command("info", trained / "bank")
    with FeatureBank.open(trained / "bank") as bank:
        teacher = bank.manifest.teacher
    assert code == 0 and teacher in out
    assert all(word in out for word in ("replay", "unlabeled", "fp16", "a teacher network would take"))


def test_info_outside_a_run_still_works_and_a_run_can_be_named(bank_command, trained, alone):
    assert json.loads(bank_command("info", alone, "--json")[1])["teacher_network_bytes"] is None
    assert json.loads(bank_command("info", alone, "--json", "--run", trained)[1])["teacher_network_bytes"] > 0


def test_info_lists_every_live_generation(bank_command, tmp_path):
    with FeatureBank.create(tmp_path / "bank", 4, "fp32", teacher="old") as bank:
        bank.write([1], [0], torch.ones(1, 4), labels=[3])
        bank.commit()
        bank.begin_generation(teacher="new", task="second")
        bank.write([1, 2], [0, 5], torch.ones(2, 4))
        bank.commit()
    found = json.loads(bank_command("info", tmp_path / "bank", "--json")[1])["generations"]
    assert [(g["teacher"], g["rows"], g["labeled_rows"]) for g in found] == [("new", 2, 0), ("old", 1, 1)]
    assert "generation 1\n" in bank_command("info", tmp_path / "bank")[1]


def test_an_empty_bank_can_be_looked_at_and_exported(bank_command, tmp_path):
    FeatureBank.create(tmp_path / "bank", 4).close()
    assert "0 of 0 images" in bank_command("info", tmp_path / "bank")[1]
    assert bank_command("export", tmp_path / "bank", "-o", tmp_path / "empty.npz")[0] == 0
    with np.load(tmp_path / "empty.npz") as data:
        assert data["features"].shape == (0, 4) and data["roles"].shape == (0,)


def test_verify_passes_a_whole_bank_and_names_the_damaged_file(bank_command, trained, alone):
    code, out, _ = bank_command("verify", trained)
    assert code == 0 and "intact (2 shards" in out
    shard = next((alone / "shards").glob("*unlabeled*"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    code, out, err = bank_command("verify", alone)
    assert code == 3 and not out
    assert str(shard) in err and "damaged" in err and len(err.splitlines()) == 1


@pytest.mark.parametrize("command", [["info"], ["verify"], ["query", "7", "--no-image"]])
def test_every_command_refuses_a_bank_whose_manifest_is_damaged(bank_command, alone, command):
    manifest = next(alone.glob("MANIFEST*"))
    manifest.write_text(manifest.read_text().replace("fp16", "fp32"))
    code, _, err = bank_command(command[0], alone, *command[1:])
    assert code == 3 and manifest.name in err


def test_export_holds_what_the_bank_holds(bank_command, trained, tmp_path):
    code, out, _ = bank_command("export", trained, "--out", tmp_path / "bank.npz")
    with FeatureBank.open(trained / "bank") as bank, np.load(tmp_path / "bank.npz") as data:
        ids, slots = bank.keys()
        assert code == 0 and f"{len(bank)} rows" in out
        np.testing.assert_array_equal(data["ids"], ids)
        np.testing.assert_array_equal(data["slots"], slots)
        np.testing.assert_array_equal(data["features"], bank.read(ids, slots))
        for role in ("replay", "unlabeled"):
            np.testing.assert_array_equal(data["ids"][data["roles"] == role], bank.keys(role)[0])
        assert json.loads(str(data["manifest"]))["teacher"] == bank.manifest.teacher
        assert "labels" not in data, "a run's bank holds no labels, so none may be made up"
    assert [path.name for path in tmp_path.iterdir()] == ["bank.npz"]


def test_export_of_an_older_generation_with_labels(bank_command, tmp_path):
    old = torch.randn(3, 4)
    with FeatureBank.create(tmp_path / "bank", 4, "fp32") as bank:
        bank.write([1, 2, 3], [0, 0, 0], old, labels=[5, -1, 7], role="support")
        bank.commit()
        bank.begin_generation()
        bank.write([9], [0], torch.randn(1, 4))
        bank.commit()
    assert bank_command("export", tmp_path / "bank", "-o", tmp_path / "old.npz", "--generation", 1)[0] == 0
    with np.load(tmp_path / "old.npz") as data:
        np.testing.assert_array_equal(data["features"], old)
        assert data["labels"].tolist() == [5, -1, 7]
    code, _, err = bank_command("export", tmp_path / "bank", "-o", tmp_path / "none.npz", "--generation", 8)
    assert code == 2 and "generation 8" in err and not (tmp_path / "none.npz").exists()


def test_export_says_where_it_cannot_write_and_keeps_what_was_there(bank_command, trained, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = bank_command("export", trained, "-o", tmp_path / "file" / "bank.npz")
    assert code == 2 and "choose another --out" in err
    damaged = shutil.copytree(trained / "bank", tmp_path / "damaged")
    next((damaged / "shards").glob("*replay*")).write_bytes(b"")
    (tmp_path / "kept.npz").write_bytes(b"earlier")
    assert bank_command("export", damaged, "-o", tmp_path / "kept.npz")[0] == 3
    assert (tmp_path / "kept.npz").read_bytes() == b"earlier"


def test_export_needs_far_less_memory_than_the_bank(tmp_path):
    """138 MB of features in another process, whose peak may rise by a third of that over its start."""
    rows = 270_000
    with FeatureBank.create(tmp_path / "bank", 128, "fp32") as bank:
        for start in range(0, rows, 90_000):
            bank.write(np.arange(start, start + 90_000), np.zeros(90_000, np.int64), torch.full((90_000, 128), 0.5))
        bank.commit()
    code = (
        "import pathlib, sys\n"
        "from nncsl.banks import export, place\n"
        "peak = lambda: int(pathlib.Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0]) // 1024\n"
        "before = peak()\n"
        "export.export(place.find(pathlib.Path(sys.argv[1])), pathlib.Path(sys.argv[2]))\n"
        "print(peak() - before)"
    )
    run = [sys.executable, "-c", code, str(tmp_path / "bank"), str(tmp_path / "bank.npz")]
    risen = int(subprocess.run(run, capture_output=True, text=True, check=True).stdout)
    assert (tmp_path / "bank.npz").stat().st_size > rows * 512
    assert risen < 46, f"{risen} MB"


def test_query_writes_a_sheet_of_the_nearest_images(bank_command, trained, tmp_path):
    image = some_image(trained)
    code, out, err = bank_command("query", trained, image, "-k", 7, "-o", tmp_path / "near.png", "--json")
    assert code == 0, err
    found = json.loads(out)
    source = open_source("digits", SourceOptions())
    similarities = [one["similarity"] for one in found["neighbors"]]
    assert len(similarities) == 7 and similarities == sorted(similarities, reverse=True) and similarities[0] <= 1.001
    assert len({one["image"] for one in found["neighbors"]} - {image}) == 7, "each image once, and not the query"
    for one in (found["query"], *found["neighbors"]):
        assert one["class"] == source.class_names[source.train_labels[one["image"]]]
    sheet = np.asarray(Image.open(tmp_path / "near.png").convert("L"))
    assert min(sheet.shape) > 300 and sheet.std() > 10
    assert [path.name for path in tmp_path.iterdir()] == ["near.png"]


def test_query_without_faiss_finds_the_same(bank_command, trained, tmp_path):
    """In the other process a module that cannot be imported stands where FAISS would be found."""
    (tmp_path / "faiss.py").write_text("raise ImportError('not installed')")
    arguments = ["query", str(trained), str(some_image(trained)), "--no-image", "--json"]
    with_faiss = json.loads(bank_command(*arguments)[1])
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    command = [sys.executable, "-m", "nncsl", "bank", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    without = json.loads(done.stdout)
    assert "not installed" in without["searched_by"] and with_faiss["searched_by"] == "FAISS"
    for one, other in zip(with_faiss["neighbors"], without["neighbors"], strict=True):
        assert one["similarity"] == pytest.approx(other["similarity"], abs=1e-5)


def test_neighbors_are_the_nearest_views_of_distinct_images(tmp_path):
    """Against a plain matrix product; the query has so many near views of few images that one search is not enough."""
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(20, 8, generator=generator)
    ids = torch.arange(20).repeat_interleave(50)
    features = vectors[ids] + 0.01 * torch.randn(1000, 8, generator=generator)
    slots = torch.arange(50).repeat(20)
    with FeatureBank.create(tmp_path / "bank", 8, "fp32") as bank:
        bank.write(ids, slots, features, labels=ids % 3)
        bank.commit()
    place = banks.place.find(tmp_path / "bank")
    answer = querying.query(place, 4, 10, slot=7)
    unit = torch.nn.functional.normalize(features, dim=1)
    similar = (unit @ unit[4 * 50 + 7]).view(20, 50).max(dim=1)
    order = [number for number in similar.values.argsort(descending=True).tolist() if number != 4][:10]
    assert [one.image for one in answer.neighbors] == order
    assert [one.slot for one in answer.neighbors] == similar.indices[order].tolist()
    assert [one.label for one in answer.neighbors] == [number % 3 for number in order]
    with FeatureBank.open(tmp_path / "bank") as bank:
        scores, found, _ = querying.exact(bank, features[[4 * 50 + 7]], 60)
    assert found.tolist().count(4) == 50 and scores[0] == pytest.approx(1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["query", "{alone}", "7"], "--run DIR"),
        (["query", "{run}", "100000"], "image 100000 is not in generation"),
        (["query", "{run}", "{image}", "--slot", "99"], "has the slots 0,"),
        (["query", "{run}", "{image}", "-k", "0"], "expected 1 or more"),
        (["query", "{alone}", "7", "--run", "{alone}"], "is not a run"),
        (["info", "{tmp}"], "holds no bank"),
        (["info", "{tmp}/nothing"], "is not a folder"),
        (["query", "{run}", "{image}", "-o", "{tmp}/file/sheet.png"], "choose another --out"),
    ],
)
def test_mistakes_are_one_line_that_says_what_to_do(bank_command, trained, alone, tmp_path, arguments, words):
    (tmp_path / "file").write_text("")
    filled = [a.format(alone=alone, run=trained, image=some_image(trained), tmp=tmp_path) for a in arguments]
    code, _, err = bank_command(*filled)
    assert code == 2 and words in err and len(err.splitlines()) == 1


def test_a_run_without_a_bank_says_why(bank_command, trained, tmp_path):
    shutil.copy(trained / "config.yaml", tmp_path)
    code, _, err = bank_command("info", tmp_path)
    assert code == 2 and "its second task begins" in err


def test_a_query_refuses_another_data_set_than_the_banks(bank_command, trained, tmp_path):
    """The same bank beside a configuration of other images."""
    moved = shutil.copytree(trained, tmp_path / "run")
    for split, count in (("train", 3), ("test", 1)):
        for label in ("a", "b"):
            folder = tmp_path / "images" / split / label
            folder.mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (40, 40), (number, 0, 0)).save(folder / f"{number}.png")
    text = (moved / "config.yaml").read_text()
    (moved / "config.yaml").write_text(text.replace("dataset: digits", f"dataset: folder:{tmp_path / 'images'}"))
    (moved / "SHA256SUMS").unlink()  # it was changed on purpose
    code, _, err = bank_command("query", moved, some_image(trained), "-o", tmp_path / "sheet.png")
    assert code == 2 and "has it changed?" in err and not (tmp_path / "sheet.png").exists()


def some_image(run):
    with FeatureBank.open(run / "bank") as bank:
        return int(bank.keys("unlabeled")[0][0])
