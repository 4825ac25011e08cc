"""The systems that can be compared. A new one: its file here, and its line below."""

import inspect
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nncsl import networks
from nncsl.config import Config
from nncsl.config import build as configs
from nncsl.data.rng import stream_key
from nncsl.data.tasks import Task
from nncsl.errors import ConfigError, shown, suggestion
from nncsl.methods.base import Method, Phase
from nncsl.methods.ccic import CCIC
from nncsl.methods.csl import CSL, CSLNoFilter
from nncsl.methods.derpp import DERpp
from nncsl.methods.dsgd import DSGD
from nncsl.methods.er_ace import ERACE
from nncsl.methods.foster import FOSTER
from nncsl.methods.gdumb import GDumb
from nncsl.methods.icarl import ICaRL
from nncsl.methods.joint import Joint
from nncsl.methods.lwf import LwF
from nncsl.methods.nncsl import NNCSL
from nncsl.methods.nncsl_plus import NNCSLPlus
from nncsl.methods.oewc import OEWC
from nncsl.methods.ordisco import ORDisCo
from nncsl.methods.paws import PAWS
from nncsl.methods.pretrain import Pretrain
from nncsl.methods.pseudoer import PseudoER
from nncsl.methods.pshd import PsHD
from nncsl.methods.supervised import ER, Finetune
from nncsl.methods.xder import XDER
from nncsl.record.state import RunState

METHODS: dict[str, type[Method]] = {
    "nncsl": NNCSL,
    "nncsl-plus": NNCSLPlus,
    "csl": CSL,
    "csl-nofilter": CSLNoFilter,
    "dsgd": DSGD,
    "pshd": PsHD,
    "paws": PAWS,
    "pseudoer": PseudoER,
    "ccic": CCIC,
    "ordisco": ORDisCo,
    "finetune": Finetune,
    "oewc": OEWC,
    "lwf": LwF,
    "er": ER,
    "er-ace": ERACE,
    "derpp": DERpp,
    "xder": XDER,
    "icarl": ICaRL,
    "foster": FOSTER,
    "gdumb": GDumb,
    "joint": Joint,
}
# What a command of its own runs; it is not compared with the others.
_APART: dict[str, type[Method]] = {"pretrain": Pretrain}


def find(name: str) -> type[Method]:
    """Return the method of that name."""
    if not isinstance(name, str) or name not in METHODS | _APART:
        near = suggestion(name, METHODS)
        raise ConfigError(f"method={shown(name)}: expected one of {', '.join(METHODS)}{near}")
    return (METHODS | _APART)[name]


def values(name: str, dataset: str) -> dict[str, Any]:
    """Return the settings that a method has whatever the preset says: NAME.yaml, beside the file of its class.

    What stands there under ``datasets``, by name, is for those alone.
    """
    path = Path(inspect.getfile(find(name))).with_name(f"{name}.yaml")
    found = configs.parse_yaml(path.read_text(), str(path)) if path.is_file() else {}
    return configs.merge(found, found.pop("datasets", {}).get(dataset, {}))


def with_own(config: Config) -> Config:
    """Return the configuration with the method's own settings checked and complete."""
    return replace(config, own=configs.plain(own(config)))


def own(config: Config) -> Any:
    """Return the method's own settings as its ``Settings``."""
    return configs.typed(find(config.method).Settings, config.own, "own.")


def settled(config: Config) -> Config:
    """Return the configuration as its method takes it: one that meets all classes at once has one task."""
    return replace(config, tasks=1, class_order=None) if find(config.method).one_task else config


def check_labels(config: Config, tasks: Sequence[Task]) -> None:
    """Refuse tasks without labels from which the method could learn nothing, before it has learned anything."""
    bare = [task.index + 1 for task in tasks if not len(task.labeled)]
    if bare[:1] == [1]:
        raise ConfigError(
            f"labels={config.labels!r}: {config.method} would begin with a task without any label, which gives it "
            "nothing to compare images with; give labels to the first task"
        )
    reason = find(config.method).needs_labels
    if bare and reason:
        raise ConfigError(
            f"labels={config.labels!r}: {config.method} can't learn task {bare[0]} without labels: {reason}"
        )


def phases(method: Method, task: Task) -> list[Phase]:
    """Return the parts of a task's training: none where neither the task nor the memory has a label."""
    return method.phases(task) if len(task.labeled) or task.remembered else []


def with_outputs(config: Config, num_classes: int) -> Config:
    """Return the configuration with the number of the head's outputs: room for classes that are added later.

    Initial weights depend on that number. A power of ten is the same for a run that is continued and for one that had
    all classes from the start.
    """
    if 0 < config.head_outputs < num_classes:
        raise ConfigError(f"head_outputs={config.head_outputs}: expected {num_classes} or more, one for each class")
    room = num_classes if find(config.method).uncontinued(grown=False) else 10 ** len(str(num_classes - 1))
    return replace(config, head_outputs=config.head_outputs or room)


def build(config: Config, num_classes: int) -> Method:
    """Return the configured method with its network, as it is before the first step."""
    method = find(config.method)
    outputs = max(config.head_outputs, num_classes)
    network = networks.build(config.network, len(config.views.mean), outputs, config.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)  # for modules of the method's own
        return method(network, config, own(config))


def rebuild(config: Config, num_classes: int) -> Method:
    """Return the configured method for values of a checkpoint: the file that its weights came from is not needed."""
    return build(replace(config, network=replace(config.network, weights=None)), num_classes)


def begin(method: Method, number: int, phase: Phase, task: Task) -> list[torch.optim.Optimizer]:
    """Begin a phase, the ``number``-th of its task; initial values of new modules are a function of the seed."""
    parameter = next(method.parameters())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_key(method.config.seed, "begin", task.index, number) >> 1)  # torch takes 63 bits
        optimizers = method.begin(phase, task)
    method.to(parameter.device)  # modules that it has just made
    if not optimizers:
        raise TypeError(f"{type(method).__name__}.begin() returned no optimizer for phase {phase.name!r}")
    return optimizers


def restore(
    method: Method, saved: dict[str, Any], tasks: Sequence[Task], state: RunState
) -> list[torch.optim.Optimizer]:
    """Bring a new method into a checkpoint's state; return the optimizers of the phase under way, if one is."""
    method.load_buffers(saved["method"])
    optimizers = begin_again(method, tasks, state)
    method.load_state_dict(saved["method"])
    if not state.begun:
        return []
    for optimizer, packed in zip(optimizers, saved["optimizers"], strict=True):
        optimizer.load_state_dict(packed)
    return optimizers


def begin_again(method: Method, tasks: Sequence[Task], state: RunState) -> list[torch.optim.Optimizer]:
    """Begin all phases that had begun, so that their modules exist; return the last one's optimizers."""
    optimizers: list[torch.optim.Optimizer] = []
    for index, (steps, remembered) in enumerate(zip(state.steps, state.memory_sizes, strict=True)):
        task = replace(tasks[index], steps=steps, remembered=remembered)
        planned = phases(method, task)
        begun = len(planned) if index < state.task else state.phase + state.begun
        for number, phase in enumerate(planned[:begun]):
            optimizers = begin(method, number, phase, task)
    return optimizers
