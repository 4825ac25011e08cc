"""Sources on real files: bundled digits, CIFAR in both versions, folders of photographs, and every way they break."""

import pickle
import shutil

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits, load_sample_images

from nncsl.data import cifar, packed, sources
from nncsl.data.sources import SourceOptions, open_source
from nncsl.errors import ConfigError, DataError

PHOTOS = [np.asarray(image) for image in load_sample_images().images]


def test_digits_are_split_once_and_for_all():
    source = open_source("digits", SourceOptions())
    assert source.train.array.shape == (1297, 8, 8, 1)
    assert np.bincount(source.test_labels).tolist() == [50] * 10
    assert source.train.array.max() == 255
    train = {image.tobytes() for image in source.train.array}
    assert not any(image.tobytes() in train for image in source.test.array)
    assert source.fingerprint == open_source("digits", SourceOptions()).fingerprint


@pytest.mark.parametrize("place", ["its own file", "another place"])
def test_digits_are_those_of_scikit_learn(monkeypatch, place):
    """Whether their file was found, which spares an import of scikit-learn, or not."""
    if place == "another place":
        monkeypatch.setattr(sources, "find_spec", lambda name: None)
    images, labels = sources._scikit_digits()
    digits = load_digits()
    assert np.array_equal(images, digits.images) and np.array_equal(labels, digits.target)
    assert labels.dtype == np.int64


def test_unknown_source():
    with pytest.raises(ConfigError, match=r"cifar11.*cifar10.*folder:PATH"):
        open_source("cifar11", SourceOptions())


# CIFAR: tiles of photographs in the format of the original files


@pytest.fixture
def tiles():
    """60 real 32x32 tiles with labels: uint8 [60, 32, 32, 3]."""
    cut = [photo[y : y + 32, x : x + 32] for photo in PHOTOS for y in range(0, 160, 32) for x in range(0, 192, 32)]
    return np.stack(cut), np.arange(60) % 10


def write_cifar10_binary(folder, tiles):
    pixels, labels = tiles
    folder = folder / "cifar-10-batches-bin"
    folder.mkdir()
    records = np.concatenate([labels[:, None], pixels.transpose(0, 3, 1, 2).reshape(60, -1)], 1).astype(np.uint8)
    for part, name in enumerate(cifar.CIFAR10.binary_files):
        (folder / name).write_bytes(records[part * 10 : part * 10 + 10].tobytes())
    (folder / "batches.meta.txt").write_text("\n".join("abcdefghij") + "\n\n")


def write_cifar10_python(folder, tiles):
    pixels, labels = tiles
    folder = folder / "cifar-10-batches-py"
    folder.mkdir()
    for part, name in enumerate(cifar.CIFAR10.python_files):
        rows = slice(part * 10, part * 10 + 10)
        batch = {"data": pixels[rows].transpose(0, 3, 1, 2).reshape(10, -1), "labels": labels[rows].tolist()}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list("abcdefghij")}, protocol=2))


@pytest.mark.parametrize("write", [write_cifar10_binary, write_cifar10_python])
def test_cifar_versions_give_the_same_arrays(tmp_path, tiles, write):
    write(tmp_path, tiles)
    source = open_source("cifar10", SourceOptions(data_dir=tmp_path, verify=False))
    assert np.array_equal(source.train.array, tiles[0][:50])
    assert np.array_equal(source.test.array, tiles[0][50:])
    assert source.train_labels.tolist() == tiles[1][:50].tolist()
    assert source.class_names == tuple("abcdefghij")
    with pytest.raises(DataError, match=r"data_batch_1.* is corrupt: .*verify_data=false"):
        open_source("cifar10", SourceOptions(data_dir=tmp_path))


def test_cifar100_uses_the_fine_label(tmp_path, tiles):
    pixels, labels = tiles
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    planar = pixels.transpose(0, 3, 1, 2).reshape(60, -1)
    records = np.concatenate([np.full((60, 1), 7), labels[:, None] + 50, planar], 1).astype(np.uint8)
    (folder / "train.bin").write_bytes(records[:50].tobytes())
    (folder / "test.bin").write_bytes(records[50:].tobytes())
    source = open_source("cifar100", SourceOptions(data_dir=folder, verify=False))
    assert source.train_labels.tolist() == (labels[:50] + 50).tolist()
    assert np.array_equal(source.test.array, pixels[50:])


def test_broken_cifar_files_are_named(tmp_path, tiles):
    options = SourceOptions(data_dir=tmp_path, verify=False)
    with pytest.raises(DataError, match=r"cifar-10-batches-bin.*cifar-10-batches-py.*nncsl data prepare cifar10"):
        open_source("cifar10", options)
    write_cifar10_binary(tmp_path, tiles)
    folder = tmp_path / "cifar-10-batches-bin"
    content = (folder / "data_batch_3.bin").read_bytes()
    (folder / "data_batch_3.bin").write_bytes(content[:-1])
    with pytest.raises(DataError, match=r"data_batch_3\.bin is corrupt: 30729 bytes"):
        open_source("cifar10", options)
    (folder / "data_batch_3.bin").write_bytes(b"\xff" + content[1:])
    with pytest.raises(DataError, match=r"data_batch_3\.bin is corrupt: label 255"):
        open_source("cifar10", options)
    (folder / "data_batch_3.bin").unlink()
    with pytest.raises(DataError, match=r"data_batch_3\.bin is missing"):
        open_source("cifar10", options)


def test_a_pickle_that_runs_code_is_refused(tmp_path, tiles):
    class Attack:
        def __reduce__(self):
            return (open, (str(tmp_path / "owned"), "w"))

    write_cifar10_python(tmp_path, tiles)
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(pickle.dumps(Attack()))
    with pytest.raises(DataError, match=r"data_batch_1 can't be read \(it refers to .*open"):
        open_source("cifar10", SourceOptions(data_dir=tmp_path, verify=False))
    assert not (tmp_path / "owned").exists()


# Folders


@pytest.fixture
def photo_folder(tmp_path):
    """Three classes of photographs of different sizes, shapes and formats, split by ratio."""
    root = tmp_path / "photos"
    for label, name in enumerate(("cat", "dog", "fox")):
        (root / name).mkdir(parents=True)
        for i in range(10):
            photo = PHOTOS[label % 2][i * 8 : i * 8 + 150 + 10 * i, : 120 + 25 * i]
            Image.fromarray(photo).save(root / name / f"{i}.{'png' if i % 2 else 'jpg'}")
    (root / ".hidden").mkdir()
    (root / "cat" / "notes.txt").write_text("not an image")
    return root


def open_folder(root, **options):
    return open_source(f"folder:{root}", SourceOptions(cache_dir=root.parent / "cache", short_side=64, **options))


def test_folder_is_decoded_once_and_split_by_ratio(photo_folder):
    source = open_folder(photo_folder)
    assert source.class_names == ("cat", "dog", "fox")
    assert (len(source.train), len(source.test)) == (24, 6)
    assert np.bincount(source.test_labels).tolist() == [2, 2, 2]
    batch = source.train.gather(np.array([5, 0, 5]))
    assert (batch.sizes.min(axis=1) == 64).all() and (batch.sizes.max(axis=1) <= 128).all()
    assert np.array_equal(batch.pixels[0], batch.pixels[2])
    files = sorted((photo_folder.parent / "cache").glob("*.images"))
    assert sorted(source.caches) == files and len(files) == 2
    before = [file.stat().st_mtime_ns for file in files]
    assert open_folder(photo_folder).fingerprint == source.fingerprint
    assert [file.stat().st_mtime_ns for file in files] == before
    assert sum(packed.verify(file) for file in files) == 30


def test_cached_pixels_are_those_of_the_resized_file(photo_folder):
    source = open_folder(photo_folder)
    i = next(i for i in range(8) if source.train_labels[i] == 0)
    path = sorted((photo_folder / "cat").glob("*.*g"))
    sizes = source.train.sizes[i]
    decoded = [np.asarray(Image.open(p).convert("RGB").resize(sizes[::-1], Image.Resampling.BILINEAR)) for p in path]
    stored = source.train.gather(np.array([i])).pixels[0]
    assert min(np.abs(stored.astype(int) - d).mean() for d in decoded) < 1.5


def test_folder_split_by_folder(photo_folder):
    root = photo_folder.parent / "split"
    for part in ("train", "val"):
        shutil.copytree(photo_folder, root / part)
    source = open_folder(root)
    assert (len(source.train), len(source.test)) == (30, 30)


def test_changed_folder_is_decoded_again(photo_folder):
    first = open_folder(photo_folder)
    Image.fromarray(255 - PHOTOS[0][:200, :200]).save(photo_folder / "cat" / "0.jpg")
    assert open_folder(photo_folder).fingerprint != first.fingerprint


def test_imagenet_uses_the_class_list_in_its_order(photo_folder, tmp_path):
    root, names = tmp_path / "imagenet", tmp_path / "classes.txt"
    for part in ("train", "val"):
        shutil.copytree(photo_folder, root / part)
    names.write_text("fox\ncat\n")
    options = SourceOptions(data_dir=root, cache_dir=tmp_path / "cache", short_side=64, class_list=names)
    assert open_source("imagenet100", options).class_names == ("fox", "cat")
    with pytest.raises(DataError, match="lacks 100 of 100 class folders, first 'n02869837'"):
        open_source("imagenet100", SourceOptions(data_dir=root, cache_dir=tmp_path / "cache"))


def test_unusable_folders_are_named(photo_folder, tmp_path):
    with pytest.raises(DataError, match="absent is not a folder"):
        open_folder(tmp_path / "absent")
    (photo_folder / "wolf").mkdir()
    with pytest.raises(DataError, match="wolf has no images"):
        open_folder(photo_folder)
    (photo_folder / "wolf" / "1.jpg").write_bytes(b"this is not a jpeg")
    with pytest.raises(DataError, match="'wolf' has 1 images: too few"):
        open_folder(photo_folder)
    for i in range(5):
        (photo_folder / "wolf" / f"{i}.jpg").write_bytes(b"this is not a jpeg")
    with pytest.raises(DataError, match=r"wolf/\d\.jpg can't be decoded"):
        open_folder(photo_folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no sub-folders"):
        open_folder(tmp_path / "empty")
    blocked = tmp_path / "file"
    blocked.write_text("in the way of the cache folder")
    shutil.rmtree(photo_folder / "wolf")
    with pytest.raises(DataError, match="cache_dir=FOLDER"):
        open_source(f"folder:{photo_folder}", SourceOptions(cache_dir=blocked / "cache", short_side=64))
