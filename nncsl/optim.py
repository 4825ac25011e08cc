"""LARS with momentum, SGD with clipped gradients, and putting a schedule's rates into optimizers."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nncsl.config import Config


class Uncompiled(torch.optim.Optimizer):
    """An optimizer that is used without loading torch's compiler, which takes seconds and 100 MB and is not used here.

    Torch hides these methods from its compiler and imports it for that when one of them is called first.
    """

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        _plain(torch.optim.Optimizer.add_param_group)(self, param_group)

    def state_dict(self) -> dict[str, Any]:
        return _plain(torch.optim.Optimizer.state_dict)(self)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        _plain(torch.optim.Optimizer.load_state_dict)(self, state_dict)


def _plain(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return what a decorated method was made of, or the method itself where torch does not decorate it."""
    return getattr(method, "__wrapped__", method)


class Lars(Uncompiled):
    """Momentum SGD in which each weight's step is scaled by |w| / |gradient|, where its group says so.

    Groups: lr, weight_decay, trust (0: no adaptation), peak (what the schedule multiplies).
    """

    def __init__(self, groups: Iterable[dict], momentum: float = 0.9, eps: float = 1e-8) -> None:
        super().__init__(groups, {"lr": 0.0, "weight_decay": 0.0, "trust": 0.0, "peak": 0.0})
        self.momentum = momentum
        self.eps = eps

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            pairs = [(p, p.grad) for p in group["params"] if p.grad is not None]
            if not pairs:
                continue
            parameters: list[Tensor] = [p for p, _ in pairs]
            updates: list[Tensor] = [gradient for _, gradient in pairs]
            if group["trust"]:
                updates = self._adapt(parameters, updates, group["trust"], group["weight_decay"])
            elif group["weight_decay"]:
                updates = list(torch._foreach_add(updates, parameters, alpha=group["weight_decay"]))
            buffers = []
            for p in parameters:
                if "momentum" not in self.state[p]:
                    self.state[p]["momentum"] = torch.zeros_like(p)
                buffers.append(self.state[p]["momentum"])
            torch._foreach_mul_(buffers, self.momentum)
            torch._foreach_add_(buffers, updates)
            torch._foreach_add_(parameters, buffers, alpha=-group["lr"])

    def _adapt(self, weights: list[Tensor], gradients: list[Tensor], trust: float, decay: float) -> list[Tensor]:
        weight_norms = torch.stack(torch._foreach_norm(weights))
        gradient_norms = torch.stack(torch._foreach_norm(gradients))
        scale = trust * weight_norms / (gradient_norms + decay * weight_norms + self.eps)
        scale = torch.where((weight_norms > 0) & (gradient_norms > 0), scale, 1.0)
        decayed = torch._foreach_add(gradients, weights, alpha=decay)
        torch._foreach_mul_(decayed, list(scale.unbind()))
        return list(decayed)


class ClippedSGD(torch.optim.SGD):
    """SGD whose gradient, that of all parameters together, is first shortened to a norm of at most ``clip``."""

    def __init__(self, parameters: Iterable[Any], clip: float, **values: Any) -> None:
        super().__init__(parameters, **values)
        self.clip = clip

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], self.clip)
        super().step()


def build(module: nn.Module, config: Config) -> Lars:
    """Return the configured optimizer of a method's parameters.

    Weights adapt and decay; biases and normalization parameters do neither. The head has its own learning rate; as in
    the authors' code, it adapts, bias included (at full strength its biases would run away), and does not decay.
    """
    trust = config.lars_trust if config.optimizer == "lars" else 0.0
    named = [(name.split("."), p) for name, p in module.named_parameters() if p.requires_grad]
    body = [p for path, p in named if "head" not in path or _in_backbone(path)]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in body if p.ndim > 1], "weight_decay": config.weight_decay, "trust": trust},
        {"params": [p for p in body if p.ndim <= 1]},
        {
            "params": [p for path, p in named if "head" in path and not _in_backbone(path)],
            "trust": trust,
            "peak": config.head_lr,
        },
    ]
    groups = [{"peak": config.lr_peak, **group} for group in groups]
    return Lars(with_backbone_rate(groups, [module], config, "peak"), momentum=config.momentum)


def with_backbone_rate(
    groups: list[dict[str, Any]], modules: Iterable[nn.Module], config: Config, rate: str = "lr"
) -> list[dict[str, Any]]:
    """Return groups of parameters, those of the modules' backbones in groups of their own.

    Their rate, by its name in a group, is the configured factor of the others'.
    """
    factor = config.network.backbone_lr
    if factor == 1:
        return groups
    slowed = {id(p) for module in modules for name, p in module.named_parameters() if _in_backbone(name.split("."))}
    parted = []
    for group in groups:
        parts = [[p for p in group["params"] if (id(p) in slowed) == own] for own in (False, True)]
        parted += [{**group, "params": parts[0]}, {**group, "params": parts[1], rate: factor * group[rate]}]
    return [group for group in parted if group["params"]]


def _in_backbone(path: Sequence[str]) -> bool:
    """Tell whether a parameter, by the parts of its name, belongs to a network's backbone."""
    return "stem" in path or "blocks" in path


def has_gradient(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether anything is to be updated; a step of one of several players leaves the others alone."""
    return any(p.grad is not None for group in optimizer.param_groups for p in group["params"])


def set_rates(optimizers: Sequence[torch.optim.Optimizer], factor: float) -> float:
    """Put ``factor`` of its peak rate into every group; return the first group's rate.

    The peak is a group's entry of that name; an optimizer that has none was built with its peak as its rate.
    """
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("peak", group["lr"]) * factor
    return optimizers[0].param_groups[0]["lr"]
