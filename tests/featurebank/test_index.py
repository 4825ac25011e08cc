"""Search, kNN and herding against plain torch."""

import builtins

import pytest
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import normalize

from nncsl.featurebank import FeatureBank
from nncsl.featurebank.index import load_faiss
from tests.featurebank.support import DEVICES, unit_rows


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Real images as features: 1,797 digits of 64 pixels, the first 1,200 of them as labeled supports."""
    pixels, labels = load_digits(return_X_y=True)
    features, labels = normalize(torch.tensor(pixels).float(), dim=1), torch.tensor(labels)
    bank = FeatureBank.create(tmp_path_factory.mktemp("digits") / "bank", dim=64, codec="fp32")
    bank.write(range(1200), [3] * 1200, features[:1200], labels[:1200], role="support")
    bank.write(range(1200, 1797), [0] * 597, features[1200:])
    bank.commit()
    yield bank, features, labels
    bank.close()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_flat_search_is_exact(digits, metric, device):
    if device != "cpu" and not load_faiss().get_num_gpus():
        pytest.skip("this faiss was built without CUDA: pip install nncsl[gpu]")
    bank, features, labels = digits
    queries = features[1200:1300]
    found = bank.index(role="support", metric=metric, device=device).search(queries, 5)
    similar = queries @ features[:1200].T
    expected = similar.topk(5)
    assert torch.equal(found.ids, expected.indices)
    assert torch.equal(found.labels, labels[found.ids]) and (found.slots == 3).all()
    scores = found.scores if metric == "cosine" else 1 - found.scores / 2
    assert torch.allclose(scores, expected.values, atol=1e-5)


@pytest.mark.parametrize("kind", ["flat", "compressed"])
def test_knn_classifies_digits(digits, kind):
    bank, features, labels = digits
    predicted = bank.index(kind, role="support").knn_classify(features[1200:], k=10)
    assert (predicted == labels[1200:]).float().mean() > 0.93


def test_compressed_search_of_a_larger_bank(tmp_path):
    centers = unit_rows(200, seed=5)
    features = normalize(centers.repeat(60, 1) + 0.3 * unit_rows(12_000, seed=6), dim=1)
    with FeatureBank.create(tmp_path / "bank") as bank:
        bank.write(range(12_000), [0] * 12_000, features)
        bank.commit()
        flat, compressed = (bank.index(kind).search(features[:500], 10).ids for kind in ("flat", "compressed"))
    recall = (compressed.unsqueeze(2) == flat.unsqueeze(1)).any(2).float().mean()
    assert recall > 0.8


def test_herding_keeps_the_mean(digits):
    bank, features, labels = digits
    chosen = bank.index(role="support").herding(8)
    assert chosen.labels.tolist() == sorted(list(range(10)) * 8)
    assert torch.equal(labels[chosen.ids], chosen.labels) and (chosen.slots == 3).all()
    assert len(set(chosen.ids.tolist())) == 80
    for label in range(10):
        members = features[:1200][labels[:1200] == label]
        herded = features[chosen.ids[chosen.labels == label]]
        distance = (members.mean(0) - herded.mean(0)).norm()
        random = [(members.mean(0) - members[torch.randperm(len(members))[:8]].mean(0)).norm() for _ in range(50)]
        assert distance < min(random)
        best_first = (members - members.mean(0)).norm(dim=1).argmin()
        assert torch.equal(herded[0], members[best_first])
    assert torch.equal(bank.index(role="support").herding(3).ids.view(10, 3), chosen.ids.view(10, 8)[:, :3])
    assert len(bank.index(role="support").herding(10_000).ids) == 1200


def test_refusals(digits):
    bank, features, _ = digits
    index = bank.index()
    with pytest.raises(ValueError, match=r"kind: expected one of .*, got 'hnsw'"):
        bank.index("hnsw")
    with pytest.raises(ValueError, match="at least one committed row"):
        bank.index(role="replay")
    with pytest.raises(ValueError, match="k: expected 1 to 1797"):
        index.search(features[:1], 1798)
    with pytest.raises(ValueError, match=r"queries: expected shape \[n, 64\], got \[1, 3\]"):
        index.search(torch.zeros(1, 3))
    with pytest.raises(ValueError, match="queries: expected finite"):
        index.search(torch.full((1, 64), float("nan")))
    with pytest.raises(ValueError, match="got 597 without"):
        index.knn_classify(features[:1])
    with pytest.raises(ValueError, match="labeled rows for herding"):
        bank.index(role="unlabeled").herding(3)


def test_without_faiss_the_error_says_what_to_install(digits, monkeypatch):
    bank, features, _ = digits
    real = builtins.__import__

    def without_faiss(name, *args, **kwargs):
        if name == "faiss":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_faiss)
    bank.index(role="support").herding(2)
    with pytest.raises(ImportError, match=r'pip install "nncsl\[cpu\]", or "nncsl\[gpu\]"'):
        bank.index().search(features[:1])
