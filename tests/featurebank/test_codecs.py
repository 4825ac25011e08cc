"""Bytes and back: error bounds on ugly numbers, and product quantization with its measured agreement."""

import logging

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nncsl.featurebank import FeatureBank
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
    ("codec", "row_bytes"), [("fp32", 512), ("fp16", 256), ("int8", 130), ("pq", 64), ("pq32", 32)]
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
