"""The benchmark of views runs, compares the same work and records what it measured."""

import json

import numpy as np
import pytest
import torch

from nncsl.benchmarks.views import main, small_images


def test_benchmark_writes_what_it_prints(tmp_path, capsys):
    threads = torch.get_num_threads()
    out = tmp_path / "results" / "views.json"
    assert main(["--images", "64", "--repeats", "1", "--out", str(out)]) == 0
    assert torch.get_num_threads() == threads
    report = json.loads(out.read_text())
    assert report["images"]["cifar"] == "64 tiles of two photos" and "64 tiles of two photos" in capsys.readouterr().out
    for row in report["recipes"]:
        assert row["ours"]["p50"] > 0 and row["pillow"]["p50"] > 0
    assert [row["recipe"] for row in report["recipes"]] == ["cifar", "imagenet"]
    assert {"hue", "render", "render without blur"} <= {row["part"] for row in report["breakdown"]}
    assert not list(out.parent.glob("*.tmp"))


def test_small_images_come_from_cifar_where_it_is(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    pixels = np.arange(3072).astype(np.uint8)  # red plane, green plane, blue plane
    (folder / "data_batch_1.bin").write_bytes(b"".join(bytes([label]) + pixels.tobytes() for label in range(4)))
    images, source = small_images(3, tmp_path)
    assert source == "3 images of CIFAR-10" and images.shape == (3, 32, 32, 3)
    assert images[1, 0, 5].tolist() == [pixels[5], pixels[1024 + 5], pixels[2048 + 5]]
    with pytest.raises(SystemExit, match="cifar-10-batches-bin"):
        main(["--data-dir", str(tmp_path / "elsewhere")])
