"""What a run will take, from counts that are known before it begins: refused here, with the figures, or nowhere."""

import os
import shutil
from pathlib import Path

from nncsl import methods
from nncsl.config import Config, NetworkConfig
from nncsl.data.tasks import Task
from nncsl.errors import ConfigError
from nncsl.featurebank.codecs import CENTROIDS, make_codec
from nncsl.planner import imagined
from nncsl.planner.sizes import Sizes

_COPIES = 3  # of the weights: themselves, gradients, momentum
_SMALL = 100_000_000  # bytes of a bank that is not worth an estimate: a full disk is noticed when it is written
_KEY_BYTES = 18  # a row's image, slot, label and scale in the bank's files


def check_network(config: Config) -> None:
    """Refuse a network that this machine can't hold, before it is built."""
    needed, available = _COPIES * network_bytes(config.network), available_memory()
    if available is not None and needed > available:
        raise ConfigError(
            f"network.width={config.network.width}, network.blocks={list(config.network.blocks)}: weights, gradients "
            f"and momentum take about {needed / 1e9:,.1f} GB, {available / 1e9:,.1f} GB are free; use a smaller network"
        )


def network_bytes(network: NetworkConfig) -> int:
    """Return about how many bytes the weights of a residual network have."""
    inputs, weights = network.width, 0
    for stage, count in enumerate(network.blocks):
        outputs = network.width * 2**stage
        weights += 9 * inputs * outputs + (2 * count - 1) * 9 * outputs**2
        inputs = outputs
    weights += network.hidden * (inputs + network.hidden + network.projection)
    return 4 * weights


def check_bank(config: Config, num_classes: int, tasks: tuple[Task, ...], folder: Path) -> None:
    """Refuse a bank that the disk has no room for, or whose codec has too few rows to learn from."""
    if config.teacher_mode != "features" or len(tasks) < 2:
        return
    method = methods.build(config, num_classes)
    rows = [imagined.rows(config, imagined.asked(method, _sizes(num_classes, task))) for task in tasks[1:]]
    if config.bank_codec == "pq" and 0 < min(rows) < CENTROIDS:
        raise ConfigError(
            f"bank_codec='pq' needs {CENTROIDS} rows or more, a task of this run would have {min(rows)}; use "
            "--bank-codec int8, or more --bank-views"
        )
    each = make_codec(config.bank_codec, config.network.projection).row_bytes + _KEY_BYTES
    size = f"{max(rows):,} rows of {each} bytes"
    asked = f"bank_views={config.bank_views}, bank_support_views={config.bank_support_views}"
    # When a task begins, and in a refresh, a new generation is written while the old one is still there.
    needed, free = 2 * max(rows) * each, shutil.disk_usage(_existing(folder)).free
    if needed > max(free, _SMALL):
        raise ConfigError(
            f"{asked}: the feature bank takes {needed / 1e9:,.1f} GB on disk while it is renewed ({size}), "
            f"{free / 1e9:,.1f} GB are free in {_existing(folder)}; use fewer views, or another --out"
        )
    needed, available = max(rows) * each, available_memory()
    if config.bank_residency == "ram" and available is not None and needed > available:
        raise ConfigError(
            f"{asked}: the feature bank takes {needed / 1e9:,.1f} GB in memory ({size}), {available / 1e9:,.1f} GB are "
            "free; use fewer views, or --set bank_residency=disk"
        )


def available_memory() -> int | None:
    """Return the bytes that this machine has free, if it says so."""
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        pages = getattr(os, "sysconf_names", {}).get("SC_PHYS_PAGES")
        return None if pages is None else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _sizes(num_classes: int, task: Task) -> Sizes:
    return Sizes(num_classes, len(task.unlabeled), len(task.labeled), 0)


def _existing(folder: Path) -> Path:
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
