"""Triton's interpreter, where there is no GPU, has to be chosen before anything imports triton: torchvision does."""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
