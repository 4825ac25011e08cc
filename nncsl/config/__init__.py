"""One typed configuration: a preset, the method's own values, then flags and ``--set``; checked before a run."""

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml

from nncsl.config import build, ranges
from nncsl.data.division import with_sizes
from nncsl.data.labels import LabelBudget
from nncsl.data.policy import ViewPolicy
from nncsl.errors import ConfigError, shown, suggestion
from nncsl.files import read_text

_UNITS = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}

# Settings that have another name now; configurations that were recorded before stay readable.
RENAMED = {
    "unlabelled_fraction": "unlabeled_fraction",
    "unlabelled_memory": "unlabeled_memory",
    "unlabelled_batch": "unlabeled_batch",
    "labelled_per_class": "labeled_per_class",
    "labelled_batch": "labeled_batch",
}

_SMALLEST_BUDGET, _SMALLEST_KEEP = 10**6, 1000

TeacherMode = Literal["features", "model", "none"]


@dataclass(frozen=True)
class NetworkConfig:
    """A backbone and its projector. The residual network of the presets: ResNet-18 is width 64, blocks [2, 2, 2, 2]."""

    stem: Literal["cifar", "imagenet"] = "cifar"
    width: int = 64
    blocks: tuple[int, ...] = (2, 2, 2, 2)
    hidden: int = 512
    projection: int = 128
    stem_padding: int = 1  # of the CIFAR stem's 3x3 convolution; the authors have 2, hence maps of 34 pixels
    backbone: str = "residual"  # or resnet18, resnet34, resnet50, wide_resnet50_2, timm:NAME, module:function
    weights: str | None = None  # a file of the backbone's
    weights_sha256: str | None = None  # of that file; filled in when a run starts
    frozen: bool = False  # the backbone stays as it is
    backbone_lr: float = 1.0  # factor on the backbone's learning rate


@dataclass(frozen=True)
class Config:
    """Everything that decides a run. The defaults are the numbers that all presets share."""

    # Data and protocol
    dataset: str
    tasks: int
    labels: str
    views: ViewPolicy
    data_dir: str | None = None
    cache_dir: str | None = None
    cache_short_side: int | None = None
    class_list: str | None = None
    class_order: tuple[int, ...] | None = None
    task_sizes: tuple[int, ...] | None = None  # classes of each task; None: as even as they go
    test_fraction: float = 0.2
    verify_data: bool = True
    skip_unreadable: bool = False  # leave images out that can't be decoded
    max_pixels: int = 50_000_000  # of an image file, before it is made smaller
    unlabeled_fraction: float = 1.0

    # Replay memory, in images
    memory: int = 500
    memory_selection: Literal["random", "herding"] = "random"
    unlabeled_memory: int = 0
    keep: str | None = None  # bytes kept beside the student, e.g. 40MB: memory and bank are chosen to fit

    # Method and teacher
    method: str = "nncsl"
    own: dict[str, Any] = field(default_factory=dict)  # the method's own settings
    teacher_mode: TeacherMode = "features"
    distillation: Literal["nnd", "kd", "feature"] = "nnd"
    bank_views: int = 4
    bank_support_views: int = 0  # sets of views of labeled images; 0: as many as of unlabeled ones
    bank_codec: Literal["fp32", "fp16", "int8", "int4", "pq"] = "fp16"
    bank_order: Literal["random", "turns"] = "random"  # in which an image's stored views are shown
    bank_residency: Literal["ram", "disk", "device"] = "ram"
    bank_refresh_epochs: int = 0

    # Objective
    tau: float = 0.1
    sharpening: float = 0.25
    smoothing: float = 0.1
    lambda_mem: float = 1.0
    lambda_lin: float = 0.005
    lambda_nnd: float = 0.2
    kd_temperature: float = 2.0

    # Optimization
    epochs: int = 250
    warmup_epochs: int = 10
    unlabeled_batch: int = 256
    labeled_per_class: int = 5
    labeled_batch: int = 32
    optimizer: Literal["lars", "sgd"] = "lars"
    lr_start: float = 0.08
    lr_peak: float = 0.4
    lr_end: float = 0.032
    lars_trust: float = 0.001
    head_lr: float = 0.12
    momentum: float = 0.9
    weight_decay: float = 1e-5
    batchnorm: Literal["freeze-after-first", "train"] = "freeze-after-first"
    batchnorm_recalibrate: bool = False  # statistics of the first task's plain images before they are frozen

    # Machine
    network: NetworkConfig = field(default_factory=NetworkConfig)
    head_outputs: int = 0  # room for classes that come later; 0: up to the next power of ten
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    memory_budget: str | None = None
    micro_batch: int = 0
    recompute: bool = False
    spill: Literal["device", "host", "disk"] = "device"
    prefetch: Literal["auto", "on", "off"] = "auto"
    cuda_graph: Literal["auto", "off"] = "auto"
    device: str = "auto"
    ranks_exact: bool = False  # the same bits for any number of ranks
    ranks_timeout: int = 120  # seconds without an answer after which the other ranks count as lost
    seed: int = 0

    def __post_init__(self) -> None:
        ranges.check(self)
        ranges.check(self.network, "network.")
        _check_together(self)

    @property
    def support_sets(self) -> int:
        """How many sets of views the bank has of labeled images."""
        return self.bank_support_views or self.bank_views

    @property
    def refreshes_bank(self) -> bool:
        """Whether stored views are replaced within a task."""
        return 0 < self.bank_refresh_epochs < self.epochs


def presets() -> list[str]:
    """The names that ``--preset`` takes."""
    return sorted(path.name[: -len(".yaml")] for path in _preset_folder().iterdir() if path.name.endswith(".yaml"))


def preset_for(dataset: str | None) -> str:
    """The preset where none is named: the data set's own; the 32-pixel one of CIFAR-10 for a user's own images."""
    if dataset is None:
        return "digits"
    return dataset if dataset in presets() else "cifar10"


def load(preset: str = "digits", overrides: Iterable[Mapping[str, Any]] = ()) -> Config:
    """The preset's configuration, then its method's own values, then the given mappings, later ones winning."""
    from nncsl import methods  # which are built from configurations

    values = preset_values(preset)
    given: dict[str, Any] = {}
    for override in overrides:
        for old in RENAMED.keys() & override.keys():
            print(f"nncsl: note: {old} is called {RENAMED[old]} now", file=sys.stderr)
        given = build.merge(given, renamed(override))
    if given.get("keep") is not None and "memory" in given:
        raise ConfigError(
            f"memory={given['memory']} and keep={given['keep']}: the latter chooses the former; leave one of them out"
        )
    dataset, method = given.get("dataset", values["dataset"]), given.get("method", values.get("method", Config.method))
    values = build.merge(values, methods.values(method, str(dataset)))
    if dataset != values["dataset"]:
        values["unlabeled_fraction"] = 1.0  # less than all of them only repeats what a data set's published runs did
    epochs, warmup = given.get("epochs"), values["warmup_epochs"]
    if isinstance(epochs, int) and "warmup_epochs" not in given:
        values["warmup_epochs"] = min(warmup, epochs // 2)  # a trial with few epochs should not be all warm-up
    return methods.with_own(build.typed(Config, build.merge(values, given)))


def preset_values(name: str) -> dict[str, Any]:
    """Return what a preset sets, as plain values."""
    if name not in presets():
        near = suggestion(name, presets())
        raise ConfigError(f"unknown preset {shown(name)}: expected one of {', '.join(presets())}{near}")
    return build.parse_yaml((_preset_folder() / f"{name}.yaml").read_text(), f"preset {name}")


def read(path: Path) -> Config:
    """Return a configuration as :func:`dump` wrote it."""
    values = build.parse_yaml(read_text(path), f"{path} is damaged, copy the run anew or start it again: it")
    try:
        return recorded(values)
    except ConfigError as error:
        raise ConfigError(f"{path} is not a configuration that this version of nncsl takes: {error}") from error


def recorded(values: Any) -> Config:
    """Return a configuration from its plain values, also if an older version wrote them."""
    return build.typed(Config, renamed(values) if isinstance(values, Mapping) else values)


def renamed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same settings by their present names, and sizes of tasks apart from their number."""
    return with_sizes({RENAMED.get(key, key): value for key, value in values.items()})


def dump(config: Config) -> str:
    """The resolved configuration as yaml; reading it back gives an equal one."""
    return yaml.safe_dump(build.plain(config), sort_keys=False, default_flow_style=None, width=110)


def parse_bytes(text: str, name: str = "memory_budget", least: int = _SMALLEST_BUDGET) -> int:
    """ "2GB" is 2e9 bytes, "2GiB" 2 * 2**30; also "500MB" and plain bytes."""
    found = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,15})?)\s*([KMGT]I?)?B?\s*", text.upper(), re.ASCII)
    if found is None or not float(found[1]):
        raise ConfigError(f"{name}={shown(text)}: expected an amount of memory such as 2GB, 500MB or 1.5GiB")
    amount = int(float(found[1]) * _UNITS[found[2] or ""])
    if amount < least:
        raise ConfigError(f"{name}={text!r}: {amount} bytes, which no run fits into; did you mean {found[1]}GB?")
    return amount


def _preset_folder() -> Any:
    return resources.files("nncsl.config") / "presets"


def _check_together(config: Config) -> None:
    """Check what no setting's own range says, as far as that can be judged without looking at the data."""
    if config.views.large.count != 2:
        raise ConfigError(f"views.large.count={config.views.large.count}: expected 2, each view is the other's target")
    if config.unlabeled_memory and not config.memory:
        raise ConfigError("unlabeled_memory needs --memory: its images are compared with remembered labeled ones")
    if config.warmup_epochs > config.epochs:
        raise ConfigError(
            f"warmup_epochs={config.warmup_epochs} is more than epochs={config.epochs}: "
            f"lower it, e.g. --set warmup_epochs={max(config.epochs // 10, 0)}"
        )
    if config.memory_budget is not None:
        parse_bytes(config.memory_budget)
    sizes = config.task_sizes
    if sizes is not None and (min(sizes, default=0) < 1 or config.tasks not in (1, len(sizes))):
        raise ConfigError(f"task_sizes={list(sizes)}: expected the classes of each of {config.tasks} tasks, 1 or more")
    if config.keep is not None:
        parse_bytes(config.keep, "keep", _SMALLEST_KEEP)
    budgets = len(LabelBudget.parse(config.labels).each)
    tasks = len(sizes) if sizes else config.tasks
    if budgets > 1 and tasks not in (1, budgets):  # all classes at once keep what their tasks would have had
        raise ConfigError(
            f"labels={config.labels!r}: {budgets} budgets for {tasks} tasks; give one for each, or one for all"
        )
