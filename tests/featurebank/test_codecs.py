"""Bytes and back: error bounds on ugly numbers, and product quantization with its measured agreement."""

import hashlib
import logging

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nncsl.featurebank import CorruptBank, FeatureBank
from nncsl.featurebank.codecs import agreement, make_codec
from tests.featurebank.support import EXACT_CODECS, error_bound, unit_rows

FLOATS = st.floats(-60000, 60000, width=32)


@pytest.mark.parametrize("codec", EXACT_CODECS)
@settings(max_examples=200, deadline=None)
@given(rows=st.lists(st.lists(FLOATS, min_size=4, max_size=4), min_size=1, max_size=5))
def test_error_bound_holds_for_any_numbers(codec, rows):
    features = torch.tensor(rows, dtype=torch.float32)
    coder = make_codec(codec, 4)
    values, scales = coder.encode(features)
    decoded = coder.decode(
        torch.from_numpy(values), None if scales is None else torch.from_numpy(scales).float().unsqueeze(1)
    )
    assert ((decoded - features).abs() <= error_bound(codec, features)).all()


@pytest.mark.parametrize(
    ("codec", "row_bytes"), [("fp32", 512), ("fp16", 256), ("int8", 130), ("int4", 66), ("pq", 64), ("pq32", 32)]
)
def test_bytes_per_feature(codec, row_bytes):
    assert make_codec(codec, 128).row_bytes == row_bytes


def clustered(n, seed=0):
    """Like projections: a few dozen directions with noise around them."""
    centers = unit_rows(30, seed=99)
    pick = torch.randint(30, (n,), generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(centers[pick] + 0.5 * unit_rows(n, seed=seed), dim=1)


@pytest.mark.parametrize("residency", ["ram", "disk", "device"])
def test_product_quantization_says_how_good_it_is(tmp_path, caplog, residency):
    features = clustered(2000)
    with FeatureBank.create(tmp_path / "bank", codec="pq") as bank, caplog.at_level(logging.WARNING, "featurebank"):
        bank.write(range(1500), [0] * 1500, features[:1500])
        bank.commit()
        assert "agree with the unquantized ones in" in caplog.text
        measured = bank.manifest.agreement
        assert 0.5 < measured <= 1
        bank.write(range(500), [1] * 500, features[1500:], role="support")  # the same codebooks, a second shard
        bank.commit()
    with FeatureBank.open(tmp_path / "bank", "a", residency=residency) as bank:
        decoded = bank.read([*range(1500), *range(500)], [0] * 1500 + [1] * 500)
        assert torch.nn.functional.cosine_similarity(decoded, features).min() > 0.9
        assert agreement(features, decoded) > measured - 0.1
        assert bank.manifest.agreement == measured
        bank.write(range(10), [2] * 10, features[:10])  # codebooks come from the stored shards
        bank.commit()
        assert torch.equal(bank.read(range(10), [2] * 10), bank.read(range(10), [0] * 10))


def test_product_quantization_trains_before_memory_fills(tmp_path):
    features = clustered(12_000)
    with FeatureBank.create(tmp_path / "bank", codec="pq32") as bank:
        for block in torch.arange(12_000).split(4000):
            bank.write(block, torch.zeros(4000, dtype=torch.int64), features[block], labels=block % 7)
        assert bank._pending is not None and not bank._pending._untrained
        bank.commit()
        assert len(bank) == 12_000 and bank.nbytes < 12_000 * (32 + 16) + 200_000
        assert torch.equal(bank.labels(range(100), [0] * 100), torch.arange(100) % 7)


def test_product_quantization_needs_enough_rows(tmp_path):
    with FeatureBank.create(tmp_path / "bank", codec="pq") as bank:
        bank.write(range(10), [0] * 10, unit_rows(10))
        with pytest.raises(ValueError, match="needs at least 256 rows there, got 10"):
            bank.commit()
        assert len(bank) == 0
        bank.commit()
        bank.verify()


@pytest.mark.parametrize("residency", ["ram", "disk", "device"])
@pytest.mark.parametrize("dim", [1, 2, 7, 129])
def test_int4_takes_any_length_zeros_and_what_is_as_large_as_can_be(tmp_path, dim, residency):
    coder = make_codec("int4", dim)
    rows = torch.cat([unit_rows(20, dim), torch.zeros(1, dim), torch.full((1, dim), coder.largest), -unit_rows(1, dim)])
    with FeatureBank.create(tmp_path / "bank", dim, "int4") as bank:
        with pytest.raises(ValueError, match="expected at most 491280 for codec 'int4'"):
            bank.write([0], [0], torch.full((1, dim), 1.001 * coder.largest))
        bank.write(range(len(rows)), [0] * len(rows), rows)
        bank.write([], [], rows[:0])
        bank.commit()
        bank.verify()
    with FeatureBank.open(tmp_path / "bank", residency=residency) as bank:
        assert bank.row_bytes == len(rows) * ((dim + 1) // 2 + 2 + 12)
        found = bank.read(range(len(rows)), [0] * len(rows))
        assert found.is_contiguous() and found.shape == rows.shape and bank.read([], []).shape == (0, dim)
    assert ((found - rows).abs() <= error_bound("int4", rows)).all()
    assert torch.equal(found[-3:-1], rows[-3:-1])


def test_int4_decodes_every_byte_to_two_of_16_levels():
    every = torch.arange(256, dtype=torch.uint8)[:, None]
    decoded = make_codec("int4", 2).decode(every, torch.full((256, 1), 2.0))
    assert decoded.dtype == torch.float32
    assert {tuple(pair) for pair in decoded.tolist()} == {(a, b) for a in range(-15, 16, 2) for b in range(-15, 16, 2)}
    again, scales = make_codec("int4", 2).encode(decoded[(decoded.abs() == 15).any(1)])  # as large as the scale says
    assert set(scales.tolist()) == {2.0}
    assert again[:, 0].tolist() == every[(decoded.abs() == 15).any(1), 0].tolist()


@pytest.mark.parametrize(("written", "claimed"), [("int4", "int8"), ("int4", "pq"), ("int8", "int4"), ("pq", "int4")])
def test_a_bank_is_read_only_as_what_it_was_written(tmp_path, written, claimed):
    """Also where another codec's rows have as many bytes, and a forger has put all checksums right."""
    with FeatureBank.create(tmp_path / "bank", dim=128, codec=written) as bank:
        bank.write(range(300), [0] * 300, unit_rows(300))
        bank.commit()
    manifest = tmp_path / "bank" / (tmp_path / "bank" / "CURRENT").read_text().split()[0]
    manifest.write_text(manifest.read_text().replace(f'"{written}"', f'"{claimed}"'))
    with pytest.raises(CorruptBank, match="damaged"):
        FeatureBank.open(tmp_path / "bank")
    body = f"{manifest.name} {hashlib.sha256(manifest.read_bytes()).hexdigest()}\nnext-generation 9\n".encode()
    (tmp_path / "bank" / "CURRENT").write_bytes(body + f"checksum {hashlib.sha256(body).hexdigest()}\n".encode())
    with pytest.raises(CorruptBank, match=f"not those of codec '{claimed}'"):
        FeatureBank.open(tmp_path / "bank", verify=False)
