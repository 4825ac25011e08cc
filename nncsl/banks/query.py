"""The images whose features are nearest to one image's: by FAISS where it is installed, else by comparing with all."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from nncsl.banks.place import Place, opened
from nncsl.errors import UserError
from nncsl.featurebank import FeatureBank

_ROWS = 65_536  # compared at a time


class Neighbor(NamedTuple):
    """An image, the nearest of its views, and what the bank says of it."""

    image: int
    slot: int
    role: str
    similarity: float
    label: int | None


class Answer(NamedTuple):
    query: Neighbor
    neighbors: list[Neighbor]
    searched_by: str
    dataset: str | None


def query(
    place: Place,
    image: int,
    count: int,
    *,
    slot: int | None = None,
    role: str | None = None,
    generation: int | None = None,
) -> Answer:
    """The ``count`` images nearest to ``image``, each by its nearest view, best first.

    The query is the image's view in ``slot`` (default: its first one); ``role`` narrows where neighbors come from.
    """
    if count < 1:
        raise UserError(f"-k {count}: expected 1 or more neighbors")
    with opened(place, generation) as bank:
        own = _own_slot(bank, image, slot)
        candidates = bank.keys(role)[0]
        others = candidates[candidates != image].unique()
        if not len(others):
            raise UserError(f"{place.bank} holds no other image" + (f" of role {role!r}" if role else ""))
        search, searched_by = _searcher(bank, role)
        vector = bank.read([image], [own])
        found = _distinct(search, vector, image, min(count, len(others)), len(candidates))
        asked, *neighbors = _described(bank, [(image, own, 1.0), *found])
        return Answer(asked, neighbors, searched_by, bank.manifest.dataset)


# A query [1, dim] and k to the k nearest rows: similarities, ids, slots, [k] each, best first.
Search = Callable[[Tensor, int], tuple[Tensor, Tensor, Tensor]]


def _searcher(bank: FeatureBank, role: str | None) -> tuple[Search, str]:
    from nncsl.featurebank.index import load_faiss

    try:
        load_faiss()
    except ImportError:
        return lambda vector, k: exact(bank, vector, k, role), "comparing with every row (FAISS is not installed)"
    index = bank.index(role=role)

    def search(vector: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        found = index.search(vector, k)
        return found.scores[0], found.ids[0], found.slots[0]

    return search, "FAISS"


def exact(bank: FeatureBank, vector: Tensor, k: int, role: str | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """The k rows with the largest cosine similarity to ``vector`` [1, dim], in blocks."""
    ids, slots = bank.keys(role)
    wanted = normalize(vector.float(), dim=1)[0]
    scores = torch.cat(
        [
            normalize(bank.read(some_ids, some_slots), dim=1) @ wanted
            for some_ids, some_slots in zip(ids.split(_ROWS), slots.split(_ROWS), strict=True)
        ]
    )
    best = scores.topk(k)
    return best.values, ids[best.indices], slots[best.indices]


def _distinct(search: Search, vector: Tensor, image: int, count: int, rows: int) -> list[tuple[int, int, float]]:
    """The nearest row of each of ``count`` other images; asks for more rows until there are enough of them."""
    asked = min(rows, 4 * count + 16)
    while True:
        nearest: dict[int, tuple[int, int, float]] = {}
        for score, number, slot in zip(*(column.tolist() for column in search(vector, asked)), strict=True):
            if number != image:
                nearest.setdefault(number, (number, slot, score))
        if len(nearest) >= count or asked == rows:
            return list(nearest.values())[:count]
        asked = min(rows, 4 * asked)


def _own_slot(bank: FeatureBank, image: int, slot: int | None) -> int:
    ids, slots = bank.keys()
    have = slots[ids == image].sort().values.tolist()
    if not have:
        some = ", ".join(str(number) for number in ids.unique()[:5].tolist())
        raise UserError(
            f"image {image} is not in generation {bank.generation} of {bank.path}: it holds {len(ids.unique())} images"
            + (f", such as {some}" if some else "")
        )
    if slot is not None and slot not in have:
        raise UserError(f"--slot {slot}: image {image} has the slots {', '.join(map(str, have))}")
    return have[0] if slot is None else slot


def _described(bank: FeatureBank, found: list[tuple[int, int, float]]) -> list[Neighbor]:
    """Role and label of each (image, slot, similarity)."""
    images, slots = torch.tensor([image for image, _, _ in found]), torch.tensor([slot for _, slot, _ in found])
    roles: dict[tuple[int, int], str] = {}
    for role in {shard.role for shard in bank.manifest.shards}:
        ids_there, slots_there = bank.keys(role)
        near = torch.isin(ids_there, images)
        roles |= dict.fromkeys(zip(ids_there[near].tolist(), slots_there[near].tolist(), strict=True), role)
    labels = [None if label < 0 else label for label in bank.labels(images, slots).tolist()]
    return [
        Neighbor(image, slot, roles[image, slot], similarity, label)
        for (image, slot, similarity), label in zip(found, labels, strict=True)
    ]


def as_json(answer: Answer, classes: list[str]) -> dict[str, Any]:
    """Plain values; ``classes`` are the names of query and neighbors, empty where it is not known."""
    shown = [
        one._asdict() | {"class": name or None}
        for one, name in zip((answer.query, *answer.neighbors), classes, strict=True)
    ]
    return {"query": shown[0], "neighbors": shown[1:], "searched_by": answer.searched_by}
