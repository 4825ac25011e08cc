"""PsHD (Fan et al., 2024) in dimension 0: the scales at which clusters of replayed images merge are distilled.

Persistent homology grows balls around all images and notes when components merge. In dimension 0 these scales are the
lengths of the edges of a minimum spanning tree.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from nncsl.config import Config
from nncsl.methods.base import Step
from nncsl.methods.distillation import Seen, of_replay
from nncsl.methods.nncsl import NNCSL
from nncsl.networks import Network


class PsHD(NNCSL):
    """CSL, with merging scales of the old supports instead of NND. It asks about remembered images alone."""

    def __init__(self, network: Network, config: Config, own: Any) -> None:
        super().__init__(network, config, own)
        self.distillation = of_replay(config, merging_scales)


def merging_scales(step: Step, method: Any, seen: Seen) -> Tensor:
    """The old supports' spanning tree in the old network keeps its lengths."""
    assert seen.supports is not None
    return persistence_loss(seen.supports, step.targets["supports"])


def persistence_loss(features: Tensor, teacher_features: Tensor) -> Tensor:
    """Return the mean squared change of length over the edges of the teacher's minimum spanning tree.

    features [K, D] each, K > 1; lengths are cosine distances. A change of other distances costs nothing, which is what
    makes it bear noise.
    """
    with torch.autocast(features.device.type, enabled=False):
        found = cosine_distances(features)
        with torch.no_grad():
            wanted = cosine_distances(teacher_features)
            tree = spanning_tree(wanted)
        return ((found - wanted).square() * tree).sum() / (len(features) - 1)


def cosine_distances(features: Tensor) -> Tensor:
    """Return 1 - cosine between all rows: [K, K]."""
    rows = F.normalize(features.to(torch.promote_types(features.dtype, torch.float32)), dim=1)
    return 1 - rows @ rows.T


def spanning_tree(distances: Tensor) -> Tensor:
    """Return the minimum spanning tree of a complete graph: bool [K, K], true once for each of its K - 1 edges (i < j).

    Boruvka's algorithm: every component takes its shortest edge outwards, all at once, and so at least halves their
    number. Of equal lengths the first pair counts as shorter. Nothing here waits for a device.
    """
    count, device = len(distances), distances.device
    rounds = max(1, (count - 1).bit_length())
    first, second = torch.triu_indices(count, count, 1, device=device)
    order = distances[first, second].argsort(stable=True)
    first, second, edges = first[order], second[order], len(order)  # an edge's number is its rank from here on
    ranks = torch.full((count, count), edges, device=device)  # no edge
    ranks[first, second] = ranks[second, first] = torch.arange(edges, device=device)
    places = torch.arange(count, device=device)
    components = places
    taken = torch.zeros(edges + 1, dtype=torch.bool, device=device)
    for _ in range(rounds):
        inside = components[:, None] == components
        shortest = ranks.masked_fill(inside, edges).amin(dim=1)
        shortest = torch.full_like(places, edges).scatter_reduce(0, components, shortest, "amin")
        taken.index_fill_(0, shortest, True)
        edge = shortest.clamp_max(edges - 1)
        across = components[first[edge]] + components[second[edge]] - places  # the component at the other end
        joined = torch.where(shortest < edges, across, places)
        mutual = (joined[joined] == places) & (places < joined)  # both took the same edge: one of them stays
        joined = torch.where(mutual, places, joined)
        for _ in range(rounds):
            joined = joined[joined]
        components = joined[components]
    tree = torch.zeros_like(ranks, dtype=torch.bool)
    tree[first, second] = taken[:edges]
    return tree
