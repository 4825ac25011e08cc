"""A run's prediction as one file for other programs; each is compared with the run before it gets its name."""

from pathlib import Path
from typing import Any

import torch

from nncsl import files
from nncsl.errors import UserError
from nncsl.export.answering import Answering, answering, described
from nncsl.export.formats import FORMATS, read_weights
from nncsl.use.model import Model

__all__ = ["Answering", "answering", "export", "read_weights"]

_COMPARED = 5  # images: another number than the file was made with
_TOLERANCE = 1e-4  # of the largest score


def export(model: Model, target: str | Path) -> dict[str, Any]:
    """Write what predicts by ``model`` (its method's own prediction) to a file; return what the file says of itself.

    What would answer otherwise than the model is not written.
    """
    target = Path(target)
    chosen = FORMATS.get(target.suffix)
    if chosen is None:
        raise UserError(f"--to {target}: expected a name that ends with {', '.join(FORMATS)}")
    chosen.check()
    if model.run.device.type != "cpu":
        model = Model.open(model.run.folder, "cpu")
    run, facts = model.run, described(model)
    pixels = torch.rand(_COMPARED, *facts["input"]["shape"][1:], generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), files.written_beside(target, advice="choose another --to") as beside:
        expected, _ = Answering(run.method, run.config.views, run.seen)(pixels)  # by evaluation's own function
        if bool(torch.isneginf(expected).all()):
            raise UserError(f"{run.folder}: {run.config.method} decides by {model.decides_by}, has none yet: train on")
        found = torch.as_tensor(chosen.write(answering(run), facts, beside)(pixels)[0])
        tolerance = _TOLERANCE * float(expected.nan_to_num(neginf=0).abs().max().clamp(min=1))
        if expected.shape != found.shape or not torch.allclose(expected, found, rtol=0, atol=tolerance):
            raise UserError(f"{target} is not written: it would answer otherwise than the run; try another format")
    return facts
