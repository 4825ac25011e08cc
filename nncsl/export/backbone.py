"""A backbone as a file that ``network.weights`` takes: trained on images alone, with a note of which they were."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from nncsl import methods, runs
from nncsl.config import Config, build
from nncsl.errors import ConfigError
from nncsl.networks import weights
from nncsl.record import checkpoint
from nncsl.record import folder as run_folder
from nncsl.version import __version__


def pretrain(
    config: Config, given: Sequence[Mapping[str, Any]], target: Path, *, quiet: bool = False, command: str | None = None
) -> dict[str, Any]:
    """Train a backbone in a folder beside ``target``, or go on there; write the file and return what it says of itself.

    given: what was asked for besides the preset; of that, what computes may differ when a training goes on.
    """
    if target.suffix != ".safetensors":
        raise ConfigError(f"--out {target}: expected a name that ends with .safetensors")
    if target.exists():
        raise ConfigError(f"--out {target} is there already: choose another name, or remove it to train anew")
    if config.network.frozen:
        raise ConfigError("network.frozen=true: a frozen backbone learns nothing; pretrain it without that")
    weights.safetensors_for(target)  # missing, it would be missed after the training
    folder = training_folder(target)
    if (folder / "checkpoint" / "state.pt").exists():
        wanted = run_folder.with_absolute_paths(methods.settled(config))
        run_folder.refuse_changes(folder, build.plain(run_folder.read_config(folder)), wanted)
        runs.resume(folder, [dict(each) for each in given], quiet=quiet)
    else:
        runs.start(config, folder, quiet=quiet, command=command)
    return write_backbone(folder, target)


def training_folder(target: Path) -> Path:
    """Return where the training of a file lies."""
    return target.with_suffix(".pretraining")


def write_backbone(folder: Path, target: Path) -> dict[str, Any]:
    """Write the backbone that the run in ``folder`` has trained; return what the file says of itself."""
    config = run_folder.read_config(folder)
    split = json.loads((folder / "tasks.json").read_text())
    method = methods.rebuild(config, sum(len(task["classes"]) for task in split["tasks"]))
    method.load_state_dict(checkpoint.load(folder / "checkpoint" / "state.pt")["method"])
    facts = {
        "nncsl": __version__,
        "method": config.method,
        "dataset": split["dataset"],
        "fingerprint": split["fingerprint"],
        "images": sum(task["unlabeled_images"] for task in split["tasks"]),
        "epochs": config.epochs,
        "seed": config.seed,
        "network": asdict(replace(config.network, weights=None)),
        "normalization": {"mean": list(config.views.mean), "std": list(config.views.std)},
    }
    weights.write(target, method.network.backbone_state(), facts)
    return facts
