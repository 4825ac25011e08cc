"""The systems that can be compared. A new one: its file here, and its line below."""

from dataclasses import replace

from nncsl.config import Config
from nncsl.errors import ConfigError
from nncsl.methods.base import Method
from nncsl.methods.csl import CSL, CSLNoFilter
from nncsl.methods.joint import Joint
from nncsl.methods.nncsl import NNCSL
from nncsl.methods.paws import PAWS
from nncsl.methods.supervised import ER, Finetune

METHODS: dict[str, type[Method]] = {
    "nncsl": NNCSL,
    "csl": CSL,
    "csl-nofilter": CSLNoFilter,
    "paws": PAWS,
    "er": ER,
    "finetune": Finetune,
    "joint": Joint,
}


def find(name: str) -> Method:
    """The method of that name."""
    if name not in METHODS:
        raise ConfigError(f"method={name!r}: expected one of {', '.join(METHODS)}")
    return METHODS[name]()


def settled(config: Config) -> Config:
    """The configuration as the method takes it: one that meets all classes at once has one task."""
    return replace(config, tasks=1, class_order=None) if find(config.method).one_task else config
