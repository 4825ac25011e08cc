"""Triton's interpreter, where there is no GPU, has to be chosen before anything imports triton: torchvision does."""

import gc
import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_collection_finish():
    """Leave what all tests have in common out of every later collection: torch alone is a million objects."""
    gc.collect()
    gc.freeze()
