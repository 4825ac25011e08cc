"""The loaders on the real CIFAR and ImageNet images, where a copy lies beside the project (or in $NNCSL_REAL_DATA)."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nncsl import config
from nncsl.config import build
from nncsl.data import cifar
from nncsl.data.catalog import open_data
from nncsl.data.sources import SourceOptions, open_source
from nncsl.errors import DataError

REAL = Path(os.environ.get("NNCSL_REAL_DATA", Path(__file__).parents[4] / "shared" / "data"))
pytestmark = pytest.mark.skipif(not (REAL / "unpack.py").exists(), reason=f"no real images in {REAL.name}/")


def unpack(name, folder):
    subprocess.run([sys.executable, str(REAL / "unpack.py"), name, str(folder)], check=True, capture_output=True)


@pytest.fixture(scope="module")
def cifar10_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cifar10")
    unpack("cifar10", folder)
    return folder


def test_cifar10_binary_and_python_versions(cifar10_folder, tmp_path):
    source = open_source("cifar10", SourceOptions(data_dir=cifar10_folder))
    assert source.train.array.shape == (50_000, 32, 32, 3) and source.test.array.shape == (10_000, 32, 32, 3)
    assert np.bincount(source.train_labels).tolist() == [5000] * 10
    assert source.class_names[:2] == ("airplane", "automobile") and source.train_labels[:5].tolist() == [6, 9, 9, 4, 1]

    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    planar = source.train.array.transpose(0, 3, 1, 2).reshape(5, 10_000, 3072)
    for part, name in enumerate(cifar.CIFAR10.python_files):
        pixels = planar[part] if part < 5 else source.test.array.transpose(0, 3, 1, 2).reshape(10_000, 3072)
        labels = source.train_labels.reshape(5, -1)[part] if part < 5 else source.test_labels
        (folder / name).write_bytes(pickle.dumps({"data": pixels, "labels": labels.tolist()}, protocol=2))
    again = open_source("cifar10", SourceOptions(data_dir=tmp_path, verify=False))
    assert np.array_equal(again.train.array, source.train.array)
    assert np.array_equal(again.test_labels, source.test_labels)


def test_cifar10_protocol_of_the_paper(cifar10_folder):
    loaded = config.load("cifar10", [{"data_dir": str(cifar10_folder)}])
    source, tasks = open_data(loaded)
    for task in tasks:
        assert np.bincount(source.train_labels[task.labeled], minlength=10)[list(task.classes)].tolist() == [40, 40]
        assert len(task.unlabeled) // loaded.unlabeled_batch == 19


def test_one_flipped_bit_is_noticed(cifar10_folder):
    path = cifar10_folder / "cifar-10-batches-bin" / "data_batch_2.bin"
    content = bytearray(path.read_bytes())
    content[12345] ^= 4
    path.write_bytes(content)
    try:
        with pytest.raises(DataError, match=r"data_batch_2\.bin is corrupt: sha1"):
            open_source("cifar10", SourceOptions(data_dir=cifar10_folder))
    finally:
        content[12345] ^= 4
        path.write_bytes(content)


def test_cifar100_fine_labels(tmp_path):
    unpack("cifar100", tmp_path)
    source = open_source("cifar100", SourceOptions(data_dir=tmp_path))
    assert np.bincount(source.train_labels).tolist() == [500] * 100
    assert source.class_names[0] == "apple" and source.class_names[99] == "worm"


def test_imagenet_folders_with_a_class_list(tmp_path):
    unpack("imagenet20", tmp_path)
    names = sorted(p.name for p in (tmp_path / "imagenet20" / "train").iterdir())[:10]
    (tmp_path / "classes.txt").write_text("\n".join(names[::-1]))
    settings = {
        "data_dir": tmp_path / "imagenet20",
        "cache_dir": tmp_path / "cache",
        "class_list": tmp_path / "classes.txt",
    }
    overrides = [{key: str(value) for key, value in settings.items()}, {"tasks": 5, "labels": "2/class", "memory": 16}]
    loaded = config.load("imagenet100", overrides)
    source, tasks = open_data(loaded)
    assert source.class_names == tuple(names[::-1])
    assert (len(source.train), len(source.test), len(tasks)) == (400, 100, 5)
    assert source.train.sizes.min() == 256
    assert build.plain(loaded)["class_list"].endswith("classes.txt")
