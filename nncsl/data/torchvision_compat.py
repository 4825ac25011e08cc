"""torchvision, also where its compiled operators cannot load (a CPU build of torch beside a CUDA build of torchvision).

The package then fails on import, because it registers shape functions for operators that nobody declared. Declaring
them (nothing in this project calls them) lets the import succeed. Import torchvision from here, everywhere:
``from nncsl.data.torchvision_compat import torchvision``.
"""

import importlib
import sys
from types import ModuleType

import torch

_SCHEMAS = tuple(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor" for name in ("nms", "qnms"))
# A library's declarations vanish with the object, so it lives as long as this module.
_declared: list[torch.library.Library] = []


def _import_torchvision() -> ModuleType:
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "operator torchvision::nms does not exist" not in str(error):
            raise
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]  # half-initialised by the failed attempt
    library = torch.library.Library("torchvision", "DEF")
    for schema in _SCHEMAS:
        library.define(schema)
    _declared.append(library)
    return importlib.import_module("torchvision")


torchvision = _import_torchvision()

__all__ = ["torchvision"]
