"""The backbone of a run as a file that ``network.weights`` takes, with a note of what it was trained on."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nncsl import methods
from nncsl.networks import weights
from nncsl.record import checkpoint
from nncsl.record import folder as run_folder
from nncsl.version import __version__


def write_backbone(folder: Path, target: Path) -> dict[str, Any]:
    """Write the backbone that the run in ``folder`` has trained; return what the file says of itself."""
    config = run_folder.read_config(folder)
    split = json.loads((folder / "tasks.json").read_text())
    classes = sum(len(task["classes"]) for task in split["tasks"])
    method = methods.rebuild(config, classes)
    method.load_state_dict(checkpoint.load(folder / "checkpoint" / "state.pt")["method"])
    facts = {
        "nncsl": __version__,
        "method": config.method,
        "dataset": split["dataset"],
        "fingerprint": split["fingerprint"],
        "images": sum(task["unlabeled_images"] for task in split["tasks"]),
        "epochs": config.epochs,
        "seed": config.seed,
        "network": asdict(config.network) | {"weights": None},
        "normalization": {"mean": list(config.views.mean), "std": list(config.views.std)},
    }
    weights.write(target, method.network.backbone_state(), facts)
    return facts
