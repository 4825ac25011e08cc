"""In a checkout the package has two names, `kernels` and `nncsl.kernels`: both may be imported in one process."""

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import importlib, sys
import torch

modules = [importlib.import_module(name) for name in sys.argv[1:]]
importlib.reload(importlib.import_module(sys.argv[1] + ".ops"))
rng = torch.Generator().manual_seed(0)
queries, supports, *teacher = (torch.randn(n, 16, generator=rng) for n in (8, 12, 8, 12))
labels = torch.arange(12) % 3


def run(module, compiled):
    def both(queries, supports):
        options = {"num_classes": 3, "backend": "blockwise"}
        loss = module.nnd_loss(queries, supports, *teacher, labels, **options)
        return loss + module.snn(queries, supports, labels, **options).square().sum()

    leaves = [x.clone().requires_grad_() for x in (queries, supports)]
    loss = (torch.compile(both, fullgraph=True, backend="aot_eager") if compiled else both)(*leaves)
    loss.backward()
    return loss.detach(), *(x.grad for x in leaves)


assert modules[0].snn is not modules[1].snn
first, *others = [run(module, compiled) for module in modules for compiled in (False, True)]
for other in others:
    assert all(map(torch.equal, first, other)), (first, other)
arguments = queries.requires_grad_(), supports, labels, None, 3, 0.1, 0.0, False, False, "blockwise", True
torch.library.opcheck(torch.ops.nncsl.snn.default, arguments)
"""


@pytest.mark.parametrize("names", [("kernels", "nncsl.kernels"), ("nncsl.kernels", "kernels")])
def test_both_names_in_one_process(names: tuple[str, str]) -> None:
    root = Path(__file__).parents[2]
    run = subprocess.run([sys.executable, "-c", CODE, *names], cwd=root, capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stderr[-3000:]
