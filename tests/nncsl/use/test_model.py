"""A run is opened and asked: what it says of a data set's test images is what evaluation measures."""

import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import nncsl
from nncsl import config, evaluation, runs
from nncsl.config import build
from nncsl.data import folders
from nncsl.errors import DataError, UserError
from nncsl.record.checkpoint import CheckpointError

# By the head; by the head of an average; by one of two branches; by class means; by votes.
METHODS = ["nncsl", "ordisco", "foster", "xder", "icarl", "ccic", "gdumb", "finetune"]


def right_by_task(names, source, tasks=2):
    """Percent right on the classes of each task, as `nncsl eval` prints it."""
    right = np.array(names) == np.array(source.class_names)[source.test_labels]
    parts = np.split(np.arange(source.num_classes), tasks)
    return [100.0 * right[np.isin(source.test_labels, part)].mean() for part in parts]


@pytest.mark.parametrize("method", METHODS)
def test_files_of_the_test_images_are_judged_as_eval_does(trained, files, digits, method):
    folder = trained(method)
    model = nncsl.load(folder, device="cpu")
    found = model.predict(files)
    measured = runs.evaluate(folder)
    assert right_by_task(found.names, digits) == pytest.approx(measured["linear"])
    assert len(set(found.names)) > 1
    assert found.probabilities.shape == (500, 10) and np.allclose(found.probabilities.sum(axis=1), 1)
    assert (found.probabilities >= 0).all()
    assert ("head" in model.decides_by) == (method not in ("icarl", "ccic"))
    if method != "finetune":
        near = model.predict(files, by="neighbors")
        assert right_by_task(near.names, digits) == pytest.approx(measured["nearest_neighbours"])


def test_a_method_that_does_not_say_what_it_decides_by_is_not_taken_for_its_head(trained, monkeypatch):
    model = nncsl.load(trained(), device="cpu")
    assert model.decides_by == "the head" and model.run.method.predicting() is model.run.method.network
    monkeypatch.setattr(type(model.run.method), "predict", lambda self, images: -self.network(images).features)
    assert model.decides_by == "a prediction of its own" and model.run.method.predicting() is None


def test_the_neighbors_that_are_named_decided(trained, files, digits):
    """A remembered image is its own nearest neighbor; weights are parts of the decision, in order."""
    model = nncsl.load(trained(), device="cpu")
    found = model.predict(files[:50], by="neighbors")
    for near in found.neighbors:
        weights = [each.weight for each in near]
        assert weights == sorted(weights, reverse=True) and 0 < sum(weights) <= 1 + 1e-6
        assert all(each.name == digits.class_names[digits.train_labels[each.id]] for each in near)
    ids = [near[0].id for near in found.neighbors]
    again = model.predict(digits.train.gather(np.array(ids)).pixels, by="neighbors")
    assert [near[0].id for near in again.neighbors] == ids
    for image, number in zip(model.remembered(ids), ids, strict=True):
        assert np.array_equal(image, digits.train.array[number])
    assert model.predict(files[:2]).neighbors is None


def test_every_form_of_an_image_gives_the_same(trained, files, digits):
    model = nncsl.load(str(trained()), device="cpu")
    pixels = digits.test.array[:4]
    expected = model.predict(files[:4]).probabilities
    tensor = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    forms = [
        [str(file) for file in files[:4]],
        [Image.fromarray(image[:, :, 0]) for image in pixels],
        [Image.fromarray(image[:, :, 0]).convert("RGBA") for image in pixels],
        pixels,
        list(pixels),
        [image[:, :, 0] for image in pixels],
        pixels.repeat(3, axis=3),
        tensor,
        list(tensor),
        [files[0], pixels[1], tensor[2], Image.fromarray(pixels[3, :, :, 0])],
    ]
    for form in forms:
        assert np.array_equal(model.predict(form).probabilities, expected)
    single = model.predict(files[0])
    assert len(single) == 1 and np.allclose(single.probabilities[0], expected[0], atol=1e-6)
    assert len(model.predict([])) == 0
    (best,) = single.top(3)
    assert best[0][0] == single.names[0] and [p for _, p in best] == sorted((p for _, p in best), reverse=True)


@pytest.mark.parametrize("wrong", [np.zeros((8, 8)), np.zeros((8, 8, 5), np.uint8), torch.zeros(3, 8, 8)])
def test_arrays_of_another_kind_are_refused(trained, wrong):
    with pytest.raises(ValueError, match="expected uint8"):
        nncsl.load(trained(), device="cpu").predict(wrong)
    with pytest.raises(TypeError, match="got int"):
        nncsl.load(trained(), device="cpu").predict(7)


def test_classes_are_those_met_so_far(trained, tmp_path, files):
    """A run that was stopped in its first task knows the classes of that task, and says of others nothing."""
    folder = tmp_path / "half"
    loaded = config.load("digits", map(build.parse_assignment, ["tasks=2", "epochs=1", "network.width=8", "memory=10"]))
    stopped = folder.with_name("stopped")
    runs.start(loaded, folder, quiet=True)
    assert nncsl.load(folder, device="cpu").classes == tuple("0123456789")
    saved = torch.load(folder / "checkpoint" / "state.pt", weights_only=True)
    saved["state"]["task"] = 1  # as it is before a step of the second task
    shutil.copytree(folder, stopped)
    torch.save(saved, stopped / "checkpoint" / "state.pt")
    (stopped / "SHA256SUMS").unlink()  # it was changed on purpose
    model = nncsl.load(stopped, device="cpu")
    assert model.classes == tuple("01234")
    assert set(model.predict(files).names) <= set("01234")


@pytest.fixture(scope="module")
def photographs(tmp_path_factory, digits):
    """A run on a folder of images of several sizes and modes, and the files that it was tested on."""
    folder = tmp_path_factory.mktemp("photographs")
    for number in range(120):
        image = Image.fromarray(digits.train.array[number, :, :, 0])
        image = image.resize((20 + number % 7 * 9, 24 + number % 5 * 11)).convert(["RGB", "L", "P"][number % 3])
        path = (
            folder
            / "images"
            / "abcd"[digits.train_labels[number] % 4]
            / f"{number}.{['jpg', 'png', 'gif'][number % 3]}"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        exif = Image.Exif()
        exif[0x0112] = 6 if number % 2 else 1
        image.save(path, **({"exif": exif} if number % 3 == 0 else {}))
    settings = {"dataset": f"folder:{folder / 'images'}", "tasks": 2, "labels": "2/class", "memory": 8, "epochs": 1}
    settings |= {"network": {"width": 8, "blocks": [1], "hidden": 16}, "unlabeled_batch": 16, "warmup_epochs": 0}
    settings |= {"cache_dir": str(folder / "cache"), "device": "cpu"}
    runs.start(config.load("cifar10", [settings]), folder / "run", quiet=True)
    found = folders.find(folder / "images", None, 0.2)
    return folder, [image.path for image in found.test.images]


def test_image_files_of_a_folder_are_judged_as_eval_does_without_the_data_set(photographs, tmp_path):
    folder, files = photographs
    opened = runs.reopen(folder / "run")
    scores, _ = evaluation.test_scores(opened.method, opened.source, opened.config.views, opened.device)
    expected = [opened.source.class_names[number] for number in scores.argmax(dim=1)]
    by_neighbors = runs.evaluate(folder / "run")["nearest_neighbours"]
    moved = [shutil.copy(file, tmp_path / f"{number}{file.suffix}") for number, file in enumerate(files)]
    shutil.rmtree(folder / "images")
    shutil.rmtree(folder / "cache")
    model = nncsl.load(folder / "run", device="cpu")
    found = model.predict(moved)
    assert found.names == expected and len(set(expected)) > 1
    assert np.allclose(found.probabilities, scores.double().softmax(dim=1), atol=1e-5)
    assert right_by_task(model.predict(moved, by="neighbors").names, opened.source) == pytest.approx(by_neighbors)


def test_large_photographs_are_no_trouble(trained, tmp_path, digits):
    """A digit photographed in twelve megapixels is still that digit."""
    model = nncsl.load(trained(), device="cpu")
    small = digits.test.array[:6, :, :, 0]
    expected = model.predict([Image.fromarray(image).resize((96, 96), 0) for image in small])
    found = model.predict([Image.fromarray(image).resize((3456, 3456), 0) for image in small])
    assert np.abs(found.probabilities - expected.probabilities).max() < 0.1
    assert len(model.predict(Image.new("L", (3, 900)))) == 1


def test_what_is_wrong_is_said(trained, tmp_path, files):
    with pytest.raises(UserError, match="is not a run"):
        nncsl.load(tmp_path)
    half = shutil.copytree(trained(), tmp_path / "half", ignore=shutil.ignore_patterns("checkpoint"))
    with pytest.raises(CheckpointError, match="nothing was saved yet"):
        nncsl.load(half)
    model = nncsl.load(trained("finetune"), device="cpu")
    with pytest.raises(UserError, match="remembers no labeled images"):
        model.predict(files[0], by="neighbors")
    with pytest.raises(DataError, match=r"absent\.png"):
        model.predict(tmp_path / "absent.png")


def test_runs_that_kept_no_pixels_take_them_from_their_data_set(trained, tmp_path, files):
    older = shutil.copytree(trained(), tmp_path / "older", ignore=shutil.ignore_patterns("memory"))
    expected = nncsl.load(trained(), device="cpu").predict(files[:20], by="neighbors")
    found = nncsl.load(older, device="cpu").predict(files[:20], by="neighbors")
    assert found.neighbors == expected.neighbors and found.classes == expected.classes


def test_importing_nncsl_does_not_load_torch():
    code = "import nncsl, sys; nncsl.load; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
