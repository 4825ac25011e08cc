"""The most similar supports: as a loop over all of them finds, in any blocks, equal ones in their order."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from nncsl.kernels import neighbors


def vectors(n: int, dim: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def naive(queries: Tensor, supports: Tensor, k: int) -> tuple[list[list[float]], list[list[int]]]:
    """Cosines and rows by definition; zero vectors have cosine 0."""

    def unit(x: list[float]) -> list[float]:
        length = max(math.sqrt(sum(v * v for v in x)), 1e-12)
        return [v / length for v in x]

    found, rows = [], []
    for query in map(unit, queries.double().tolist()):
        cosines = [sum(a * b for a, b in zip(query, unit(s), strict=True)) for s in supports.double().tolist()]
        order = sorted(range(len(cosines)), key=lambda row: (-cosines[row], row))[:k]
        rows.append(order)
        found.append([cosines[row] for row in order])
    return found, rows


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("k", "block"), [(1, 4096), (2, 7), (5, 3), (23, 1), (23, 22), (23, 23)])
def test_a_loop_over_all_supports_finds_the_same(k: int, block: int, dtype: torch.dtype, device: torch.device) -> None:
    queries, supports = vectors(9, 6, 1, dtype) * 3, vectors(23, 6, 2, dtype) * 0.2
    similarities, indices = neighbors(queries.to(device), supports.to(device), k, block=block)
    wanted, rows = naive(queries, supports, k)
    assert similarities.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert similarities.shape == indices.shape == (9, k)
    assert indices.tolist() == rows
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    exact = torch.tensor(wanted, dtype=torch.float64)
    torch.testing.assert_close(similarities.cpu().double(), exact, rtol=0, atol=tolerance)


@pytest.mark.parametrize("block", [1, 2, 3, 5, 8, 4096])
def test_of_equal_ones_the_lower_row_comes_first(block: int) -> None:
    """Axes, some of them twice or three times, at lengths that are powers of two: cosines are exactly 0 and 1."""
    supports = torch.eye(3)[[2, 0, 1, 0, 2, 0, 1, 2]] * torch.tensor([1.0, 4, 2, 0.5, 8, 1, 1, 2])[:, None]
    _, indices = neighbors(torch.eye(3)[[0, 2]] * 16, supports, 5, block=block)
    assert indices.tolist() == [[1, 3, 5, 0, 2], [0, 4, 7, 1, 2]]


def test_vectors_of_length_zero_are_similar_to_nothing() -> None:
    similarities, indices = neighbors(
        torch.tensor([[0.0, 0.0], [1.0, 0.0]]), torch.tensor([[-1.0, 0.0], [0.0, 0.0]]), 2
    )
    assert similarities.tolist() == [[0, 0], [0, -1]] and indices.tolist() == [[0, 1], [1, 0]]


def test_it_neither_differentiates_nor_obeys_autocast_nor_changes_its_arguments() -> None:
    queries, supports = vectors(4, 8, 3, torch.float32).requires_grad_(), vectors(6, 8, 4, torch.float32)
    plain = neighbors(queries, supports, 3)
    before = supports.clone()
    with torch.autocast("cpu", torch.bfloat16):
        similarities, indices = neighbors(queries, supports, 3)
    assert not similarities.requires_grad and torch.equal(supports, before)
    assert torch.equal(similarities, plain[0]) and torch.equal(indices, plain[1])


def test_nothing_of_the_size_of_all_pairs_is_made() -> None:
    """1,000 queries and 100,000 supports would be 400 MB of similarities; 1,000 at a time are 4."""
    sizes = []

    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = function(*args, **(kwargs or {}))
            sizes.extend(x.numel() for x in (made if isinstance(made, tuple) else (made,)) if isinstance(x, Tensor))
            return made

    queries, supports = vectors(1000, 4, 5, torch.float32), vectors(100_000, 4, 6, torch.float32)
    with Largest():
        similarities, indices = neighbors(queries, supports, 2, block=1000)
    assert max(sizes) == 1000 * 1000
    units = torch.nn.functional.normalize(supports[indices], dim=2)
    torch.testing.assert_close((units * torch.nn.functional.normalize(queries, dim=1)[:, None]).sum(2), similarities)


def test_bad_numbers_propagate() -> None:
    queries, supports = torch.eye(3), torch.eye(3)
    queries[0, 1], supports[2, 0] = float("nan"), float("inf")
    similarities, indices = neighbors(queries, supports, 2, block=1)
    assert similarities[0].isnan().all() and similarities[:, 0].isnan().all()
    assert indices[1].tolist() == [2, 1] and similarities[1, 1] == 1


def test_no_queries_have_no_neighbors() -> None:
    similarities, indices = neighbors(torch.zeros(0, 3), torch.eye(3), 2)
    assert similarities.shape == indices.shape == (0, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"queries": torch.zeros(4)}, r"queries must have shape \[rows, dim\].*got shape \[4\]"),
        ({"supports": torch.zeros(6, 2)}, r"supports must have dim 3 like queries, got shape \[6, 2\]"),
        ({"supports": torch.zeros(0, 3)}, "supports is empty"),
        ({"k": 0}, r"k must be in \[1, 6\] for 6 supports, got 0"),
        ({"k": 7}, r"k must be in \[1, 6\] for 6 supports, got 7"),
        ({"block": 0}, "block must be >= 1, got 0"),
    ],
)
def test_bad_arguments(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        neighbors(**{"queries": torch.ones(4, 3), "supports": torch.ones(6, 3), "k": 2, **changes})
