"""What a backbone does not allow, in sentences for before the training."""

from collections.abc import Iterator

from torch import nn

from nncsl.config import Config
from nncsl.distributed import Ranks
from nncsl.errors import ConfigError
from nncsl.networks import Network
from nncsl.networks.modes import drops

_BatchNorm = nn.modules.batchnorm._BatchNorm
_MERGED = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)  # what ranks know how to share


def sentences(network: Network, config: Config, ranks: Ranks) -> Iterator[str]:
    """Give a sentence for each thing that will not be as the settings may have meant it; refuse what can't be."""
    if ranks.units > 1:
        _check_shared(network, config, exact=ranks.exact)
    name = config.network.backbone
    if network.frozen:
        if config.network.weights is None and ":" not in name:
            yield f"network.frozen=true without network.weights: {name} stays as it is, random"
        return
    if any(drops(module) for module in network.blocks.modules()):
        yield f"dropout inside {name} stays off: a step is a function of the seed, also where it is computed twice"
    if network.divided:
        return
    norms = _norms(network)
    if config.micro_batch and norms:
        until = " in the first task" if config.batchnorm == "freeze-after-first" else ""
        yield (
            f"micro-batches: where BatchNorm is in {name} is not known, so{until} its backbone takes whole batches; "
            "network.frozen=true, or a network without BatchNorm, needs the memory of a micro-batch alone"
        )
    if config.recompute:
        yield f"recompute: {name} is computed again as one piece; micro-batches save more"


def _check_shared(network: Network, config: Config, *, exact: bool) -> None:
    """Refuse ranks where they could not compute BatchNorm together as one process would."""
    norms = [] if network.divided or network.frozen else _norms(network)
    strange = [type(norm).__name__ for norm in norms if type(norm) not in _MERGED]
    if strange or (norms and (exact or config.micro_batch)):
        what = strange[0] if strange else "BatchNorm in places that are not known"
        raise ConfigError(
            f"network.backbone={config.network.backbone} has {what}, which ranks can't share"
            f"{'' if strange else ' in micro-batches or exactly'}; train it in one process, or with network.frozen=true"
        )


def _norms(network: Network) -> list[nn.Module]:
    return [module for module in network.blocks.modules() if isinstance(module, _BatchNorm)]
