"""The step that DistributedDataParallel is given: a rank's own images, and everything that belongs to them."""

import argparse

import pytest
import torch

from nncsl.benchmarks import ranks
from nncsl.distributed import Ranks


@pytest.mark.parametrize("rank", [0, 1])
def test_an_own_part_is_a_whole_step_of_fewer_images(rank):
    bench = ranks.Bench(argparse.Namespace(batch=12, width=8, data_dir=None))
    method = bench.method
    step = bench.look(method, Ranks(), 0, method.network)
    part = ranks.own_part(method, step, Ranks(rank=rank, count=2))
    for name, group in step.batch.items():
        assert 2 * len(part.batch[name]) == len(group)
        assert set(part.batch[name].keys.ids) <= set(group.keys.ids)
        assert torch.equal(
            torch.isin(part.pixels[name].flatten(1)[:, 0], step.pixels[name].flatten(1)[:, 0]).all(), torch.tensor(True)
        )
    loss = method.losses(part).total
    loss.backward()
    assert loss.isfinite() and not torch.equal(loss, method.losses(step).total)
