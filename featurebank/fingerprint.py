"""A name for what made the features: equal exactly when every tensor is."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """sha256 over the sorted names, types, shapes and bytes, as of a state dict. Independent of device and order."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}\0{tensor.dtype}\0{list(tensor.shape)}\0".encode())
        if tensor.numel():  # an empty one may have a stride of which no bytes can be made
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
