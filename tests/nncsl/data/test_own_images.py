"""A user's own images as people have them: without classes, in tables, in arrow files, unreadable, badly named."""

import io
import json
import os
import struct
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

from nncsl import cli
from nncsl.data.sources import NO_CLASS, SourceOptions, open_source
from nncsl.errors import DataError

PHOTOS = [np.asarray(image) for image in load_sample_images().images]
CLASSES = ("cat", "dog")


def photo(label, i):
    return Image.fromarray(PHOTOS[label][i * 8 : i * 8 + 40 + i, : 40 + 5 * i])


@pytest.fixture
def folder(tmp_path):
    """Two classes of six small photographs of different sizes."""
    root = tmp_path / "photos"
    for label, name in enumerate(CLASSES):
        (root / name).mkdir(parents=True)
        for i in range(6):
            photo(label, i).save(root / name / f"{i}.png")
    return root


def opened(name, tmp_path, **options):
    return open_source(name, SourceOptions(cache_dir=tmp_path / "cache", short_side=16, **options))


def prepared(capsys, tmp_path, *arguments):
    """Exit code and all that is said by ``nncsl data prepare``."""
    cache = ("--set", f"cache_dir={tmp_path / 'cache'}", "--set", "cache_short_side=16")
    code = cli.main(["data", "prepare", *arguments, *cache])
    found = capsys.readouterr()
    return code, found.out + found.err


# Images of no class


@pytest.mark.parametrize("place", ["unlabeled", "train/unlabeled", "unlabelled"])
def test_unlabeled_images_of_a_folder_train_and_have_no_class(folder, tmp_path, place):
    if "/" in place:
        for part in ("train", "test"):
            (folder / part).mkdir()
        for name in CLASSES:
            (folder / name).rename(folder / "train" / name)
            (folder / "test" / name).mkdir()
            photo(0, 3).save(folder / "test" / name / "0.png")
    (folder / place).mkdir()
    for i in range(3):
        photo(1, i).save(folder / place / f"{i}.png")
    source = opened(f"folder:{folder}", tmp_path)
    assert source.class_names == CLASSES
    assert (source.train_labels == NO_CLASS).sum() == 3 and (source.test_labels != NO_CLASS).all()
    assert source.train_labels[-3:].tolist() == [NO_CLASS] * 3


def test_a_run_on_images_of_no_class_and_unreadable_ones(folder, tmp_path, capsys):
    (folder / "unlabeled").mkdir()
    (folder / "dog" / "6.png").write_bytes(b"no image")
    for i in range(4):
        photo(1, i).save(folder / "unlabeled" / f"{i}.png")
    arguments = ["--dataset", f"folder:{folder}", "--tasks", "1,1", "--labels", "1/class", "--memory", "2"]
    arguments += ["--epochs", "1", "--quiet", "--no-report", "--out", str(tmp_path / "run")]
    for setting in ("network.width=4", "network.hidden=8", "bank_views=1", "unlabeled_batch=4", "views.large.size=16"):
        arguments += ["--set", setting]
    arguments += ["--set", "views.small.count=0", "--set", f"cache_dir={tmp_path / 'cache'}"]
    assert cli.main(["train", *arguments]) == 2 and not (tmp_path / "run").exists()
    assert cli.main(["train", *arguments, "--skip-unreadable"]) == 0
    assert "1 images can't be read and are left out" in capsys.readouterr().out
    recorded = json.loads((tmp_path / "run" / "tasks.json").read_text())
    assert [task["unlabeled_images"] for task in recorded["tasks"]] == [5 + 2, 5 + 2]
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["unlabeled_accuracy"] for line in lines if line["kind"] == "epoch"] == [100, 100]  # one class a task
    assert recorded["left_out"] == [str(folder / "dog" / "6.png")]
    (tmp_path / "run" / "summary.json").unlink()
    photo(1, 0).save(folder / "dog" / "6.png")  # the data set has an image more than the run
    assert cli.main(["train", "--resume", str(tmp_path / "run")]) == 2
    assert "records other tasks" in capsys.readouterr().err


# Tables


def test_a_table_of_paths_and_labels(folder, tmp_path):
    rows = [f"{name}/{i}.png,{name if i else ''}" for name in CLASSES for i in range(6)]
    (folder / "images.csv").write_text("path,label\n" + "\n".join(rows))
    source = opened(f"csv:{folder / 'images.csv'}", tmp_path)
    assert source.class_names == CLASSES and (len(source.train), len(source.test)) == (10, 2)
    assert np.bincount(source.train_labels + 1).tolist() == [2, 4, 4]
    by_folder = opened(f"folder:{folder}", tmp_path)
    row, place = source.train_names.index("dog/2.png"), by_folder.train_names.index("dog/2.png")
    one, other = source.train.gather(np.array([row])), by_folder.train.gather(np.array([place]))
    assert np.array_equal(one.pixels, other.pixels)


def test_a_table_may_have_numbers_splits_other_columns_and_no_header(folder, tmp_path):
    rows = [f"{10 if i % 2 else 9},{folder / name / f'{i}.png'},{'test' if i > 3 else 'train'}"
            for name in CLASSES for i in range(6)]  # fmt: skip
    (tmp_path / "t.csv").write_text("\ufefflabel,path,split\n" + "\n".join(rows))
    source = opened(f"csv:{tmp_path / 't.csv'}", tmp_path)
    assert source.class_names == ("9", "10") and (len(source.train), len(source.test)) == (8, 4)
    (folder / "bare.csv").write_text("\n".join(f"{name}/{i}.png, {name}" for name in CLASSES for i in range(6)))
    assert opened(f"csv:{folder / 'bare.csv'}", tmp_path).class_names == CLASSES


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("path,label\ncat/0.png\n", "line 2: expected path,label"),
        ("path,label\ncat/0.png,\n", "no image has a label"),
        ("path,label,split\ncat/0.png,cat,later\n", "line 2: split is 'later'"),
        ('path,label\n"cat', "can't be read as a CSV file"),
        ("path,label,split\ncat/0.png,cat,test\ncat/1.png,cat,\ndog/0.png,dog,\n", "'dog' has no image in the split"),
    ],
)
def test_tables_that_make_no_sense(folder, tmp_path, content, words):
    (folder / "t.csv").write_text(content)
    with pytest.raises(DataError, match=words):
        opened(f"csv:{folder / 't.csv'}", tmp_path)


# Hugging Face


def encoded(label, i):
    content = io.BytesIO()
    photo(label, i).save(content, "PNG")
    return content.getvalue()


def table(rows, names=CLASSES):
    """Rows of (class, number, label) as `datasets` writes them."""
    images = [{"bytes": encoded(label, i), "path": f"{i}.png"} for label, i, _ in rows]
    image_type = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    columns = {"image": pa.array(images, image_type), "label": pa.array([label for *_, label in rows], pa.int64())}
    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": list(names)}}
    return pa.table(columns).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


TRAIN = [(label, i, label if i else -1) for label in (0, 1) for i in range(5)]
TEST = [(label, 5, label) for label in (0, 1)]


def saved_to_disk(root):
    for split, rows in (("train", TRAIN), ("test", TEST)):
        (root / split).mkdir(parents=True)
        with pa.OSFile(str(root / split / "data-00000-of-00001.arrow"), "wb") as file:
            content = table(rows)
            with pa.ipc.new_stream(file, content.schema) as stream:
                stream.write_table(content, max_chunksize=3)
    (root / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')


def of_the_hub(root):
    (root / "data").mkdir(parents=True)
    for split, rows in (("train", TRAIN), ("test", TEST)):
        pq.write_table(table(rows), root / "data" / f"{split}-00000-of-00001.parquet", row_group_size=3)


@pytest.mark.parametrize("write", [saved_to_disk, of_the_hub])
def test_hugging_face_data_sets(folder, tmp_path, write):
    write(tmp_path / "pets")
    source = opened(f"hf:{tmp_path / 'pets'}", tmp_path)
    assert source.class_names == CLASSES and (len(source.train), len(source.test)) == (10, 2)
    assert source.train_labels.tolist() == [label for *_, label in TRAIN] and source.test_labels.tolist() == [0, 1]
    by_folder = opened(f"folder:{folder}", tmp_path)
    place = by_folder.train_names.index("dog/2.png")
    one, other = source.train.gather(np.array([7])), by_folder.train.gather(np.array([place]))
    assert np.array_equal(one.pixels, other.pixels)


def test_hugging_face_files_without_splits_or_features(tmp_path):
    content = table(TRAIN).replace_schema_metadata(None)
    content = content.set_column(1, "label", pa.array(["ab"[label] if label >= 0 else None for *_, label in TRAIN]))
    pq.write_table(content, tmp_path / "images.parquet")
    source = opened(f"hf:{tmp_path / 'images.parquet'}", tmp_path)
    assert source.class_names == ("a", "b") and np.bincount(source.train_labels + 1).tolist() == [2, 3, 3]
    (tmp_path / "images.parquet").write_bytes(b"PAR1 but no parquet file")
    with pytest.raises(DataError, match="can't be read as a data set of arrow or parquet"):
        opened(f"hf:{tmp_path / 'images.parquet'}", tmp_path)
    with pytest.raises(DataError, match="does not exist"):
        opened(f"hf:{tmp_path / 'absent'}", tmp_path)


# What can't be read


def bomb(path, side=20_000):
    """A small PNG that says it has 400 million pixels."""
    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(bytes(side) * 20)), (b"IEND", b"")]
    chunks = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    ]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))


def test_every_unreadable_image_is_listed_once_and_can_be_left_out(folder, tmp_path, capsys):
    (folder / "cat" / "6.jpg").write_bytes(b"this is not a jpeg")
    content = (folder / "dog" / "1.png").read_bytes()
    (folder / "dog" / "6.png").write_bytes(content[: len(content) // 2])
    os.mkfifo(folder / "dog" / "7.png")  # would keep a reader for ever
    bomb(folder / "cat" / "7.png", side=8000)
    bomb(folder / "cat" / "8.png")
    bad = ("cat/6.jpg", "cat/7.png", "cat/8.png", "dog/6.png", "dog/7.png")
    code, said = prepared(capsys, tmp_path, f"folder:{folder}")
    assert code == 2 and "5 of 17 images can't be read" in said and "--skip-unreadable" in said
    assert all(said.count(f"{name} can't be decoded") == 1 for name in bad)
    assert "not a regular file" in said and "8000 x 8000 pixels; --set max_pixels=64000000" in said
    code, said = prepared(capsys, tmp_path, f"folder:{folder}", "--skip-unreadable")
    assert code == 0 and "left out: 5 images" in said and all(said.count(name) == 1 for name in bad)
    source = opened(f"folder:{folder}", tmp_path, skip_unreadable=True)
    assert len(source.train) + len(source.test) == 12 and len(source.left_out) == 5
    source.train.gather(np.arange(len(source.train)))
    (folder / "cat" / "9.png").symlink_to("nowhere")
    with pytest.raises(DataError, match=r"cat/9\.png can't be decoded \(No such file"):
        opened(f"folder:{folder}", tmp_path)


def test_a_class_of_which_nothing_can_be_read_is_named(folder, tmp_path):
    for file in (folder / "dog").iterdir():
        file.write_bytes(b"gone")
    with pytest.raises(DataError, match="'dog' has no image left"):
        opened(f"folder:{folder}", tmp_path, skip_unreadable=True)


def test_a_file_that_is_too_long_is_not_read(folder, tmp_path):
    with (folder / "cat" / "0.png").open("r+b") as file:
        file.truncate(1 << 40)  # a hole
    with pytest.raises(DataError, match=r"0\.png can't be decoded \(1099511627776 bytes"):
        opened(f"folder:{folder}", tmp_path)


# Folders that are not as they should be


def test_names_that_are_long_or_not_utf8_are_read(folder, tmp_path, capsys):
    strange = folder.rename(folder.parent / ("x" * 255))
    odd = (strange / "cat").rename(strange / os.fsdecode(b"cat\xff\xfe"))
    (odd / "0.png").rename(odd / os.fsdecode(b"\xf00.png"))
    source = opened(f"folder:{strange}", tmp_path)
    assert source.class_names == (r"cat\xff\xfe", "dog")
    assert prepared(capsys, tmp_path, f"folder:{strange}")[0] == 0
    (odd / os.fsdecode(b"\xf00.png")).write_bytes(b"no image")
    code, said = prepared(capsys, tmp_path, f"folder:{strange}")
    assert code == 2 and r"\xf00.png can't be decoded" in said
    other = strange.rename(strange.parent / os.fsdecode(b"\xff"))
    for name, words in ((other, "expected UTF-8"), ("y" * 300, "a name in it has 300 bytes")):
        code, said = prepared(capsys, tmp_path / "none", f"folder:{name}")
        assert code == 2 and words in said and not (tmp_path / "none").exists()


def test_a_folder_one_level_too_high_gets_a_hint(folder, tmp_path):
    with pytest.raises(DataError, match=rf"one level too high\? Try folder:{folder}"):
        opened(f"folder:{folder.parent}", tmp_path)
    with pytest.raises(DataError, match=rf"6 images belong into them; parent folder: {folder}"):
        opened(f"folder:{folder / 'cat'}", tmp_path)
