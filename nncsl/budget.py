"""``--memory-budget``: from an amount of memory to the fastest settings that keep a run within it."""

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from featurebank.codecs import make_codec
from nncsl import accounting, methods, networks, optim, probe
from nncsl.config import Config, parse_bytes
from nncsl.data.batches import LABELED_VIEWS
from nncsl.errors import ConfigError
from nncsl.passes import Passes, Spill

SIZES = (64, 32, 16, 8, 4, 2, 1)  # of micro-batches, the fastest first
_KEY_BYTES = 24  # a bank's row besides its feature: image, slot, role, position
_REST = 32_000_000  # objects, logs, evaluation's rendering, code compiled for another shape: too small to plan apart
_SAFETY = 0.97  # of the budget is planned for: measurements vary


@dataclass(frozen=True)
class Sizes:
    """What is known of the data: all that memory depends on."""

    classes: int
    unlabeled_per_task: int
    labeled_per_task: int
    data_bytes: int


@dataclass(frozen=True)
class Option:
    """One way to run, and what it takes: bytes by part at the moment of the peak, and seconds of an average step."""

    config: Config
    parts: dict[str, int]
    seconds: float

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    @property
    def computes_twice(self) -> bool:
        return bool(self.config.micro_batch or self.config.recompute)

    @property
    def extras(self) -> int:
        """Recomputation, and cuts that are moved: work that the same option without them does not have."""
        return int(self.config.recompute) + int(self.config.spill != "device")

    @property
    def name(self) -> str:
        chosen = self.config
        words = [f"micro-batch {chosen.micro_batch}"] if chosen.micro_batch else ["whole batch"]
        words += ["recompute"] if chosen.recompute else []
        words += [f"first task on {chosen.spill}"] if chosen.micro_batch and chosen.spill != "device" else []
        return ", ".join(words)


@dataclass(frozen=True)
class Plan:
    """The chosen option; what the budget and the process were before it; the best option of every other kind."""

    chosen: Option
    budget: int
    baseline: int
    others: tuple[Option, ...]


def make_plan(
    config: Config,
    sizes: Sizes,
    device: torch.device,
    folder: Path,
    say: Callable[[str], None] = lambda text: None,
    *,
    data_is_open: bool,
) -> Plan:
    """Measures, then chooses the fastest option that fits; a ConfigError names the smallest budget that would do."""
    assert config.memory_budget is not None
    budget = parse_bytes(config.memory_budget)
    say(f"measuring a few small steps on {device} to plan for {config.memory_budget} ...")
    accounting.one_heap()
    planner = _Planner(config, sizes, device, folder)
    while True:
        best = _best_of_each_kind(planner.options(), budget * _SAFETY)
        fitting = [option for option in best if option.total <= budget * _SAFETY]
        if not fitting:
            smallest = min(planner.options(), key=lambda option: option.total)
            raise ConfigError(
                f"memory_budget={config.memory_budget}: too little for this run; the smallest that would work is "
                f"{_round_up(smallest.total / _SAFETY)} ({smallest.name}; {describe(smallest.parts)})"
            )
        # What does less can't be slower: where it fits, no noise of a measurement rules it out.
        chosen = min(fitting, key=lambda option: (option.computes_twice, option.extras, option.seconds))
        if not planner.confirm(chosen):
            break
    base = baseline(chosen.config, device, folder, sizes.data_bytes if data_is_open else 0)
    return Plan(chosen, budget, base, tuple(option for option in best if option is not chosen))


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
    network = _network(config, classes=1).to(device)
    prober = probe.Prober(network, config, device)
    how = Passes(config.micro_batch, config.recompute, config.spill, folder)
    for frozen in (False, True):
        prober.rehearse(how, frozen=frozen)
    prober.inference()
    optim.build(network, config).step()
    del network, prober
    accounting.forget_peak(device)
    return accounting.in_use(device) - (0 if device.type == "cuda" else data_bytes)


def _network(config: Config, classes: int) -> networks.Network:
    maps = config.distillation == "feature"
    return networks.build(config.network, len(config.views.mean), classes, config.seed, feature_map=maps)


class _Planner:
    def __init__(
        self,
        config: Config,
        sizes: Sizes,
        device: torch.device,
        folder: Path,
    ) -> None:
        self._config, self._sizes, self._folder = config, sizes, folder
        self._on_gpu = device.type == "cuda"
        network = _network(config, sizes.classes).to(device)
        self._student = networks.nbytes(network)
        self._prober = probe.Prober(network, config, device)
        self._inference = int(self._prober.inference())

    def options(self) -> Iterator[Option]:
        """Every combination that the configuration leaves open, the bank's place chosen for each."""
        config = self._config
        spills: tuple[Spill, ...] = ("device", "host", "disk") if self._on_gpu else ("device", "disk")
        kinds: list[tuple[int, bool, Spill]] = [(0, False, "device"), (0, True, "device")]
        kinds += [(size, recompute, spill) for size in SIZES for recompute in (False, True) for spill in spills]
        for size, recompute, spill in kinds:
            if config.micro_batch not in (0, size) or (config.recompute and not recompute):
                continue  # what was asked for by hand stays
            yield self._with_bank(replace(config, micro_batch=size, recompute=recompute, spill=spill))

    def confirm(self, option: Option) -> bool:
        """Measures the option's own micro-batches; True where that had not been done yet."""
        how = self._passes(option.config)
        news = [self._prober.confirm(self._load(first=first), how) for first in (True, False)]
        return any(news)

    def _passes(self, config: Config) -> Passes:
        return Passes(config.micro_batch, config.recompute, config.spill, self._folder)

    def _with_bank(self, config: Config) -> Option:
        """The bank where it is fastest; on disk where that does not fit; with fewer bits if the disk is too full."""
        assert config.memory_budget is not None
        limit = parse_bytes(config.memory_budget) * _SAFETY
        free = shutil.disk_usage(self._folder).free
        places = ("device", "ram", "disk") if self._on_gpu else ("ram", "disk")
        codecs = dict.fromkeys((config.bank_codec, "int8"))
        option = None
        for codec in codecs:
            for place in places:
                option = self._option(replace(config, bank_residency=place, bank_codec=codec))  # type: ignore[arg-type]
                if option.total <= limit and self._bank_bytes(option.config) < free:
                    return option
        assert option is not None
        return option

    def _option(self, config: Config) -> Option:
        how = self._passes(config)
        first, last = self._load(first=True), self._load(first=False)
        costs = [(self._prober.step(first, how), first), (self._prober.step(last, how), last)]
        tasks = max(config.tasks, 1)
        seconds = (costs[0][0].seconds + (tasks - 1) * costs[1][0].seconds) / tasks
        rise, load = max(costs, key=lambda pair: pair[0].rise + self._pixels(pair[1]))
        distills = methods.find(config.method).distills and tasks > 1
        parts = {
            "student": self._student,
            "gradients": self._student,
            "optimizer": self._student,
            "teacher": self._student if distills and config.teacher_mode == "model" else 0,
            "bank": self._bank_in_memory(config) if distills and config.teacher_mode == "features" else 0,
            "data": 0 if self._on_gpu else self._sizes.data_bytes,
            "pixels": self._pixels(load),
            "rest": _REST,
        }
        # Between steps an update exists once beside the weights.
        parts["activations"] = int(max(rise.rise - parts["gradients"], self._inference, self._student))
        return Option(config, parts, seconds)

    def _load(self, *, first: bool) -> probe.Load:
        config = self._config
        frozen = config.batchnorm == "freeze-after-first" and not first
        if not methods.find(config.method).uses_unlabeled:
            return probe.Load(config.labelled_batch * (1 if first else 2), 0, frozen)
        seen = self._sizes.classes // config.tasks if first else self._sizes.classes
        batch = min(config.unlabelled_batch, self._sizes.unlabeled_per_task)
        supports = LABELED_VIEWS * config.labelled_per_class * seen
        return probe.Load(config.views.large.count * batch + supports, config.views.small.count * batch, frozen)

    def _pixels(self, load: probe.Load) -> int:
        """The rendered views of a step, and once more where those of one size are put together."""
        views = self._config.views
        values = load.large * views.large.size**2 + load.small * views.small.size**2
        return 2 * 4 * len(views.mean) * values

    def _bank_bytes(self, config: Config) -> int:
        views = config.views
        rows = self._sizes.unlabeled_per_task * (views.large.count + views.small.count)
        rows += (self._sizes.labeled_per_task + config.memory) * LABELED_VIEWS
        dim = self._sizes.classes if config.distillation == "kd" else config.network.projection
        return rows * config.bank_views * (make_codec(config.bank_codec, dim).row_bytes + _KEY_BYTES)

    def _bank_in_memory(self, config: Config) -> int:
        if config.bank_residency == "disk" or (self._on_gpu and config.bank_residency == "ram"):
            return 0
        return self._bank_bytes(config)


def describe(parts: dict[str, int]) -> str:
    """Parts in MB, in one line."""
    return ", ".join(f"{name} {size / 1e6:,.0f} MB" for name, size in parts.items() if size)


def _round_up(size: float) -> str:
    """To the next 10 MB."""
    return f"{-(-int(size) // 10**7) * 10}MB"
