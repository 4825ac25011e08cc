"""Hard nearest neighbors: the most similar supports of each query, block by block over the supports."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .reference import EPS


def most_similar(queries: Tensor, supports: Tensor, k: int, block: int) -> tuple[Tensor, Tensor]:
    """Return the k largest cosines [N, k] of every query and their supports [N, k], the largest first."""
    dtype = torch.promote_types(torch.promote_types(queries.dtype, supports.dtype), torch.float32)
    units = F.normalize(queries.to(dtype), dim=1, eps=EPS)
    best = units.new_zeros((len(units), 0))
    indices = torch.zeros_like(best, dtype=torch.int64)
    for start in range(0, len(supports), block):
        part = F.normalize(supports[start : start + block].to(dtype), dim=1, eps=EPS)
        found, rows = _largest(units @ part.t(), min(k, len(part)))
        # Stable, and earlier blocks come first: of equal ones the lower index stays in front.
        merged, order = torch.sort(torch.cat([best, found], dim=1), dim=1, descending=True, stable=True)
        best, order = merged[:, :k], order[:, :k]
        indices = torch.cat([indices, rows + start], dim=1).gather(1, order)
    return best, indices


def _largest(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row, and where; of equal ones the first. Overwrites ``values``.

    torch.topk leaves open which of equal values it takes; for few neighbors k maxima are hardly slower.
    """
    found, places = [], []
    for _ in range(k):
        largest, place = values.max(dim=1, keepdim=True)
        found.append(largest)
        places.append(place)
        values.scatter_(1, place, float("-inf"))  # less than any cosine
    return torch.cat(found, dim=1), torch.cat(places, dim=1)
