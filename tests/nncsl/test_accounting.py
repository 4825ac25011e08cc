import subprocess
import sys

import numpy as np
import torch
from torch import nn

from nncsl import accounting
from nncsl.data.images import ArrayImages, PackedImages


def test_saved_activations_of_a_network_worked_by_hand():
    """A linear layer keeps its input, a ReLU its output; weights are not activations."""
    network = nn.Sequential(nn.Linear(10, 20, bias=False), nn.ReLU())
    x = torch.randn(8, 10)
    with accounting.saved_activations(network) as counted:
        network(x).sum()
    assert counted.peak == 4 * (8 * 10 + 8 * 20)


def test_what_a_backward_pass_lets_go_is_not_counted_any_more():
    """Ten passes one after the other hold no more than one; a pass inside another's backward adds to it."""
    network = nn.Linear(10, 20, bias=False)
    with accounting.saved_activations(network) as counted:
        for _ in range(10):
            network(torch.randn(8, 10)).sum().backward()
    assert counted.peak == 4 * 8 * 10


def test_image_bytes_are_those_of_the_images_without_padding():
    """Also of more images than are read at once."""
    same = ArrayImages(np.zeros((200, 8, 6, 3), np.uint8))
    assert accounting.image_bytes(same, np.arange(150)) == 150 * 8 * 6 * 3
    sizes = np.array([[2, 3], [4, 1], [5, 5]])
    starts = np.concatenate([[0], np.cumsum(sizes.prod(axis=1) * 3)])
    packed = PackedImages(np.zeros(starts[-1], np.uint8), starts[:-1], sizes)
    assert accounting.image_bytes(packed, np.array([0, 2])) == 3 * (6 + 25)
    assert accounting.image_bytes(packed, np.zeros(0, np.int64)) == 0


def test_optimizer_bytes():
    weight = nn.Parameter(torch.zeros(5, 3))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    weight.grad = torch.ones(5, 3)
    optimizer.step()
    assert accounting.optimizer_bytes(optimizer) == 60


def test_peak_is_the_processes_own_and_sees_a_large_tensor():
    """Measured in a child of a parent that holds 400 MB: its own peak must not include that."""
    ballast = torch.ones(100_000_000)
    code = """
import torch
from nncsl.accounting import process_peak
cpu = torch.device("cpu")
before = process_peak(cpu)
x = torch.ones(25_000_000)
print(before, process_peak(cpu))
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, after = map(int, shown.stdout.split())
    assert ballast.sum() > 0 and before < 400_000_000
    assert 90_000_000 < after - before < 130_000_000
