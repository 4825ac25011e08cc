"""The cache of decoded images, as real processes use it: at once, killed, on a full disk; and with flipped bits."""

import multiprocessing
import os
import random
import resource
import signal
import sys
import time

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

from nncsl.data import decoding, packed
from nncsl.data.catalog import prepare
from nncsl.data.sources import SourceOptions, open_source
from nncsl.errors import DataError

PHOTOS = [np.asarray(image) for image in load_sample_images().images]
forked = multiprocessing.get_context("fork")


@pytest.fixture
def photos(tmp_path):
    """Two classes of ten photographs each."""
    root = tmp_path / "photos"
    for label, name in enumerate(("cat", "dog")):
        (root / name).mkdir(parents=True)
        for i in range(10):
            Image.fromarray(PHOTOS[label][i * 8 : i * 8 + 150, : 120 + 5 * i]).save(root / name / f"{i}.png")
    return root


def opened(root, cache="cache", **options):
    return open_source(f"folder:{root}", SourceOptions(cache_dir=root.parent / cache, short_side=32, **options))


def in_process(work, *arguments):
    process = forked.Process(target=work, args=arguments)
    process.start()
    return process


def test_processes_at_once_prepare_one_cache(photos, tmp_path):
    """One decodes; the others wait, say so, and use what it made."""
    barrier = forked.Barrier(3)

    def work(number):
        sys.stdout = sys.stderr = (tmp_path / f"{number}.out").open("w", buffering=1)
        slow = decoding.read

        def read(*arguments):
            time.sleep(0.02)  # long enough for the others to come
            return slow(*arguments)

        decoding.read = read
        barrier.wait()
        (tmp_path / f"{number}.fingerprint").write_text(opened(photos).fingerprint)

    processes = [in_process(work, number) for number in range(3)]
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    expected = opened(photos, "alone").fingerprint
    assert {(tmp_path / f"{number}.fingerprint").read_text() for number in range(3)} == {expected}
    said = [(tmp_path / f"{number}.out").read_text() for number in range(3)]
    assert sum("photos-train: decoding" in text for text in said) == 1
    assert sum("waiting for another process, which is preparing" in text for text in said) == 2


def test_killed_while_decoding_it_goes_on_and_ends_the_same(photos, monkeypatch):
    opened(photos, "whole")
    expected = {file.name: file.read_bytes() for file in (photos.parent / "whole").glob("*.images")}
    monkeypatch.setattr(packed, "_CHUNK", 5)
    slow, reads = decoding.read, []

    def read(*arguments):
        reads.append(1)
        if len(reads) == 12:
            os.kill(os.getpid(), signal.SIGKILL)
        return slow(*arguments)

    def work():
        decoding.read = read
        opened(photos)

    process = in_process(work)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    cache = photos.parent / "cache"
    assert not list(cache.glob("*.images"))
    assert packed._read_journal(next(cache.glob("*.journal"))) in [(5, {}), (10, {})]
    decoded = []
    monkeypatch.setattr(decoding, "read", lambda *arguments: decoded.append(1) or slow(*arguments))
    opened(photos)
    assert len(decoded) <= 15  # of twenty
    assert {file.name: file.read_bytes() for file in cache.glob("*.images")} == expected
    assert {file.suffix for file in cache.iterdir()} == {".images", ".lock"}


def test_every_flipped_bit_is_noticed(photos):
    source = opened(photos)
    chance = random.Random(0)
    for file in source.caches:
        content = file.read_bytes()
        head = range(packed._HEAD.size + 20 * packed._ROW.itemsize)
        for place in [*(chance.choice(head) for _ in range(40)), *(chance.randrange(len(content)) for _ in range(40))]:
            damaged = bytearray(content)
            damaged[place] ^= 1 << chance.randrange(8)
            file.write_bytes(damaged)
            with pytest.raises(DataError, match=r"corrupt.*delete it"):
                packed.verify(file)
        for damaged in (content[:-1], content[: len(content) // 2], b"", content + b"\0"):
            file.write_bytes(damaged)
            with pytest.raises(DataError, match=r"corrupt.*delete it"):
                opened(photos)
        file.write_bytes(content)
    assert opened(photos).fingerprint == source.fingerprint


def test_a_flipped_pixel_is_noticed_when_it_is_first_read(photos):
    source = opened(photos)
    file = source.caches[0]
    content = bytearray(file.read_bytes())
    content[-10] ^= 4  # of the last image; two bytes of notes are behind it
    file.write_bytes(content)
    images = opened(photos).train
    images.gather(np.arange(len(images) - 1))
    with pytest.raises(DataError, match=rf"{file.name} is corrupt at image {len(images) - 1}: delete it"):
        images.gather(np.array([len(images) - 1]))


def test_a_full_disk_is_an_error_that_says_how_much_is_needed(photos, tmp_path):
    """No file may grow over 20 kB here: what a disk that fills up while images are decoded looks like."""

    def work():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        try:
            opened(photos)
        except DataError as error:
            os.write(handle, str(error).encode())
            os._exit(7)

    handle = os.open(tmp_path / "message", os.O_CREAT | os.O_WRONLY)
    process = in_process(work)
    process.join(60)
    os.close(handle)
    assert process.exitcode == 7
    message = (tmp_path / "message").read_text()
    assert "File too large" in message and "0.1 MB are needed" in message and "cache_dir=FOLDER" in message
    opened(photos)  # with room it goes on


def test_an_exchanged_image_changes_the_fingerprint_whatever_its_size_and_time(photos):
    file = photos / "dog" / "3.bmp"  # as long as any other of its shape
    Image.fromarray(PHOTOS[0][:40, :40]).save(file)
    before, times = opened(photos).fingerprint, file.stat()
    Image.fromarray(PHOTOS[1][:40, :40]).save(file)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert file.stat().st_size == times.st_size
    assert opened(photos).fingerprint != before


def test_one_exchanged_digit_changes_the_fingerprint():
    source = open_source("digits", SourceOptions())
    before = source.fingerprint
    for image in (1, 700, 1296):
        other = open_source("digits", SourceOptions())
        other.train.array[image, 0, 0] ^= 1
        assert other.fingerprint != before


def test_preparing_says_where_the_cache_is_and_at_which_size(photos, small, tmp_path):
    (photos / "cat" / "IMG_1.HEIC").write_bytes(b"from a phone")
    (photos / "dog" / "notes.txt").write_text("not an image")
    (photos / "README").write_text("neither")
    loaded = small(f"dataset=folder:{photos}", f"cache_dir={tmp_path / 'cache'}", "cache_short_side=32")
    said = prepare(loaded)
    assert "16 training and 4 test images in 2 classes" in said and "over every image" in said
    (file,) = (tmp_path / "cache").glob("*train*.images")
    assert f"{file}, {file.stat().st_size / 1e6:.1f} MB" in said and "short side 32 pixels" in said
    assert "ignored: 3 files that are not read as images: 1 .heic, 1 .txt, 1 without suffix" in said
    assert "20 checksums are right" in said
