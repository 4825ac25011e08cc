"""What a run would keep with the paper's network: its ledger, with the networks in it counted at their full size.

Reduced runs see real images through a small network of half a megabyte. Their ledgers are right about images and labels
and about each row of the bank, whose projections have 128 numbers in both networks, but a copied network weighs about a
hundredth of what the paper's ResNet-18 does, 47 MB. So counted anew is what grows with the student's network:

- ``teacher``, the old network, copied or resting for a refresh;
- a method's second network (``own.average`` of ORDisCo, ``own.resting`` of PseudoER, ``own.other`` of FOSTER);
- what has a number for each weight or feature (``own.fisher`` and ``own.anchor`` of oEWC, ``own.means`` of iCaRL).

Each is larger by as many bytes as it is when the same method is built around the larger network: shapes alone, without
memory. Everything else stays as it was recorded: images, labels, logits, banks, and ORDisCo's generator and
discriminator, whose size is a setting of their own. FOSTER's bank of features and its heads stay too, though they would
be larger: what is said of FOSTER is a lower bound.

Only the network is exchanged, not the protocol: a bank has rows for the unlabeled images that the run took
(``unlabeled_fraction``), and more where the full-size preset takes more. Nor does this say anything about accuracy:
that is the small network's.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache

import torch

from nncsl import config, methods
from nncsl.accounting import state_bytes
from nncsl.config import Config, NetworkConfig, build
from nncsl.data.catalog import KNOWN
from nncsl.record import ledger
from nncsl.record.ledger import Parts

from ..accuracy.records import Record

OF_THE_PAPER = ("cifar10", "cifar100", "imagenet100")  # data sets whose full-size preset has the data set's name
FOSTER_BRANCH = "own.other"  # a copy of the network, but made when a task begins and not with the method


def kept(record: Record) -> Parts | None:
    """Return a recorded run's ledger with the paper's network; None if the version that made it counted nothing."""
    tasks = record["summary"].get("kept_by_task")
    if tasks is None:
        return None
    recorded = config.recorded(record["config"])
    return with_network(tasks, recorded, paper_network(recorded.dataset))


def paper_network(dataset: str) -> NetworkConfig:
    """Return the network of the data set's full-size preset; that of CIFAR-10 where the paper has no such data set."""
    return config.load(dataset if dataset in OF_THE_PAPER else OF_THE_PAPER[0]).network


def with_network(tasks: Iterable[Mapping[str, int]], settings: Config, network: NetworkConfig) -> Parts:
    """Return what the fullest task keeps with another network; tasks: what each kept with that of the settings."""
    own, other = _sizes(settings), _sizes(replace(settings, network=network))
    larger = {name: other[name] - own[name] for name in own}
    return ledger.fullest({name: size + larger.get(name, 0) for name, size in parts.items()} for parts in tasks)


def _sizes(settings: Config) -> Parts:
    """Return the bytes of everything in a ledger that depends on the network; the seed makes no difference."""
    return _sizes_of(json.dumps(build.plain(replace(settings, seed=0)), sort_keys=True))


@cache
def _sizes_of(plain: str) -> Parts:
    settings = config.recorded(json.loads(plain))
    classes = KNOWN[settings.dataset].classes
    with torch.device("meta"):
        method = methods.rebuild(methods.with_outputs(settings, classes), classes)
    branch = {FOSTER_BRANCH: state_bytes(method.network)}
    return {"teacher": state_bytes(method)} | branch | ledger.own_state(method)
