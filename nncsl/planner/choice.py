"""``--memory-budget``: from an amount of memory to the fastest settings that keep a run within it."""

import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from nncsl import accounting, methods, optim
from nncsl.config import Config, parse_bytes
from nncsl.errors import ConfigError
from nncsl.passes import Passes
from nncsl.planner import measure
from nncsl.planner.options import SAFETY, Option, Options
from nncsl.planner.sizes import Sizes

Say = Callable[[str], None]


def silent(text: str) -> None:
    """Say nothing."""


@dataclass(frozen=True)
class Plan:
    """The chosen option and its kind of device; budget and process before it; the best option of every other kind."""

    chosen: Option
    device: str
    budget: int
    baseline: int
    others: tuple[Option, ...]

    @property
    def limit(self) -> float:
        """What may be planned for."""
        return self.budget * SAFETY


def make_plan(
    config: Config,
    sizes: Sizes,
    device: torch.device,
    folder: Path,
    say: Say = silent,
    *,
    data_is_open: bool,
    ranks: int = 1,
    note: Say = silent,
) -> Plan:
    """Measures, then chooses the fastest option that fits; a ConfigError names the smallest budget that would do."""
    assert config.memory_budget is not None
    budget = parse_bytes(config.memory_budget)
    say(f"measuring a few small steps on {device} to plan for {config.memory_budget} ...")
    accounting.one_heap()
    measured = Options(config, sizes, device, folder, ranks)
    while True:
        options = times_in_order(list(_noted(measured, note)))
        best = _best_of_each_kind(options, budget * SAFETY)
        fitting = [option for option in best if option.total <= budget * SAFETY]
        chosen = min(fitting or options, key=lambda o: (o.seconds, o.computes_twice, o.extras) if fitting else o.total)
        if not measured.confirm(chosen):
            break
    if not fitting:
        raise ConfigError(
            f"memory_budget={config.memory_budget}: too little for this run; the smallest that would work is "
            f"{_round_up(chosen.total / SAFETY)} ({chosen.name}; {describe(chosen.parts)})"
        )
    del measured  # its network is not part of the process that a budget is counted from
    base = baseline(chosen.config, device, folder, sizes.data_bytes if data_is_open else 0)
    return Plan(chosen, device.type, budget, base, tuple(option for option in best if option is not chosen))


def _noted(options: Iterable[Option], note: Say) -> Iterator[Option]:
    """Give the options; each has been measured when it comes, and is told of."""
    for number, option in enumerate(options, 1):
        note(f"planning: {number} ways measured, now {option.name}")
        yield option


def times_in_order(options: list[Option]) -> list[Option]:
    """The options, none faster than one that does no more: small measurements are too noisy to tell them apart."""
    return [
        replace(option, seconds=max(other.seconds for other in options if other.does_no_more_than(option)))
        for option in options
    ]


def _best_of_each_kind(options: Iterable[Option], limit: float) -> list[Option]:
    """The fastest that fits, or else the smallest, of those that differ in the size of micro-batches only."""
    kinds: dict[tuple[bool, bool, str], list[Option]] = {}
    for option in options:
        settings = option.config
        kinds.setdefault((bool(settings.micro_batch), settings.recompute, settings.spill), []).append(option)
    best = []
    for members in kinds.values():
        fitting = [option for option in members if option.total <= limit]
        best.append(min(fitting, key=lambda o: o.seconds) if fitting else min(members, key=lambda o: o.total))
    return best


def baseline(config: Config, device: torch.device, folder: Path, data_bytes: int) -> int:
    """What the process takes without the run: interpreter, libraries, and what those compile and keep.

    A budget is counted from here. Known only after a rehearsal, as most of it is loaded or compiled on first use.
    """
    accounting.one_heap()
    method = methods.build(config, num_classes=1).to(device)
    meter = measure.Meter(method.network, config, device)
    how = Passes(config.micro_batch, config.recompute, config.spill, folder)
    for frozen in (False, True):
        meter.rehearse(how, frozen=frozen)
    meter.inference()
    optim.build(method, config)  # the first optimizer makes torch import 100 MB
    del method, meter
    gc.collect()
    accounting.forget_peak(device)
    return accounting.in_use(device) - (0 if device.type == "cuda" else data_bytes)


def describe(parts: dict[str, int]) -> str:
    """Parts in MB, in one line."""
    return ", ".join(f"{name} {size / 1e6:,.0f} MB" for name, size in parts.items() if size)


def _round_up(size: float) -> str:
    """To the next 10 MB."""
    return f"{-(-int(size) // 10**7) * 10}MB"
