"""Every way to run that a configuration leaves open, and what each takes: bytes by part, and seconds."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from nncsl import accounting, methods, networks
from nncsl.config import Config, TeacherMode, parse_bytes
from nncsl.errors import ConfigError
from nncsl.featurebank.codecs import make_codec
from nncsl.featurebank.table import LARGEST_MAPPING
from nncsl.passes import Passes, Spill
from nncsl.planner import imagined, measure
from nncsl.planner.sizes import Sizes

SAFETY = 0.97  # of the budget is planned for: measurements vary
_SIZES = (64, 32, 16, 8, 4, 2, 1)  # of micro-batches, the fastest first
_KEY_BYTES = 24  # a bank's row besides its feature: image, slot, role, position
_REST = 32_000_000  # objects, logs, evaluation's rendering, code compiled for another shape: too small to plan apart


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

    def does_no_more_than(self, other: "Option") -> bool:
        """Whether the other option does all that this one does, and perhaps something else besides."""
        mine, theirs = self.config, other.config
        return (
            mine.micro_batch in (0, theirs.micro_batch)
            and mine.recompute <= theirs.recompute
            and mine.spill in ("device", theirs.spill)
        )

    @property
    def name(self) -> str:
        chosen = self.config
        words = [f"micro-batch {chosen.micro_batch}"] if chosen.micro_batch else ["whole batch"]
        words += ["recompute"] if chosen.recompute else []
        words += [f"cuts on {chosen.spill}"] if chosen.micro_batch and chosen.spill != "device" else []
        return ", ".join(words)


class Options:
    """Measures on first use; later answers know of everything that was confirmed."""

    def __init__(
        self,
        config: Config,
        sizes: Sizes,
        device: torch.device,
        folder: Path,
        ranks: int = 1,
    ) -> None:
        self._config, self._sizes, self._folder = config, sizes, folder
        self._on_gpu = device.type == "cuda"
        self._free = shutil.disk_usage(folder).free
        method = methods.build(config, sizes.classes).to(device)
        if method.counted_apart:
            raise ConfigError(
                f"memory_budget={config.memory_budget}: {config.method} also trains its "
                f"{' and '.join(method.counted_apart)}, whose passes can't be planned yet; leave the budget out and "
                "give --micro-batch or --recompute by hand"
            )
        self._loads = {first: imagined.load(method, sizes, first=first).share(ranks) for first in (True, False)}
        self._student = networks.nbytes(method)  # with the modules that its last task has
        frozen = config.network.frozen
        self._trained = accounting.gradient_bytes(method) if frozen else self._student
        self._inputs = imagined.inputs(method, sizes, ranks)
        self._asks = imagined.asked(method, sizes)
        self._answer_size = imagined.answer_size(method, self._asks, device)
        self._meter = measure.Meter(method.network, config, device)
        self._inference = int(self._meter.inference())

    def __iter__(self) -> Iterator[Option]:
        """Every combination that the configuration leaves open, the bank's place chosen for each.

        What differs from its default was asked for by hand and stays.
        """
        config = self._config
        found = False
        for size in (config.micro_batch,) if config.micro_batch else (0, *_SIZES):
            spills: tuple[Spill, ...] = ("device", "host", "disk") if self._on_gpu else ("device", "disk")
            if not size or config.spill != Config.spill:
                spills = (config.spill,)
            for recompute in (True,) if config.recompute else (False, True):
                for spill in spills:
                    option = self._with_bank(replace(config, micro_batch=size, recompute=recompute, spill=spill))
                    if option is not None:
                        found = True
                        yield option
        if not found:
            raise ConfigError(
                f"{self._folder.resolve()}: {self._free / 1e6:,.0f} MB are free, too little for this run's bank"
                " (and cuts, if they go to the disk); make room or choose another folder with --out"
            )

    def confirm(self, option: Option) -> bool:
        """Measures the option's own micro-batches; True where that had not been done yet."""
        how = self._passes(option.config)
        news = [self._meter.confirm(self._loads[first], how) for first in (True, False)]
        return any(news)

    def _passes(self, config: Config) -> Passes:
        return Passes(config.micro_batch, config.recompute, config.spill, self._folder)

    def _with_bank(self, config: Config) -> Option | None:
        """The bank where it is fastest; on disk where that does not fit; with fewer bits if the disk is too full."""
        assert config.memory_budget is not None
        limit = parse_bytes(config.memory_budget) * SAFETY
        places: tuple[str, ...] = ("device", "ram", "disk") if self._on_gpu else ("ram", "disk")
        if config.bank_residency != Config.bank_residency:
            places = (config.bank_residency,)
        codecs = (config.bank_codec, "int8") if config.bank_codec == Config.bank_codec else (config.bank_codec,)
        option = None
        for codec in codecs:
            settings = replace(config, bank_codec=codec)  # type: ignore[arg-type]
            if self._on_disk(settings) > self._free:
                continue
            for place in places:
                option = self._option(replace(settings, bank_residency=place))  # type: ignore[arg-type]
                if option.total <= limit:
                    return option
        return option

    def _on_disk(self, config: Config) -> float:
        """Bytes of files: the bank's, whatever is kept in memory of it, stored inputs, and moved cuts."""
        first, how = self._loads[True], self._passes(config)
        cuts = float(self._inputs.features + self._inputs.rows * _KEY_BYTES)
        if config.micro_batch and config.spill == "disk":
            kept = self._meter.step(first, replace(how, spill="device")).rise
            cuts += max(0.0, kept - self._meter.step(first, how).rise)
        if not self._has_teacher(config, "features"):
            return cuts
        # A refresh writes new sets beside the old ones; the weights of teacher and student lie in files meanwhile.
        bank = self._bank_bytes(config)
        return cuts + (2 * bank + 2 * self._student if config.refreshes_bank else bank)

    def _option(self, config: Config) -> Option:
        how = self._passes(config)
        first, last = self._loads[True], self._loads[False]
        costs = [(self._meter.step(first, how), first), (self._meter.step(last, how), last)]
        tasks = max(config.tasks, 1)
        seconds = (costs[0][0].seconds + (tasks - 1) * costs[1][0].seconds) / tasks
        rise, load = max(costs, key=lambda pair: pair[0].rise + self._pixels(pair[1]))
        parts = {
            "student": self._student,
            "gradients": self._trained,
            "optimizer": self._trained,
            "teacher": self._student if self._has_teacher(config, "model") else 0,
            "bank": self._bank_in_memory(config) if self._has_teacher(config, "features") else 0,
            "data": 0 if self._on_gpu else self._sizes.data_bytes,
            "pixels": self._pixels(load),
            "rest": _REST,
        }
        if self._inputs.rows:
            parts["inputs"] = self._inputs_in_memory(config)
        parts["activations"] = int(max(rise.rise - parts["gradients"], self._between_steps(config, parts["bank"])))
        return Option(config, parts, seconds)

    def _between_steps(self, config: Config, bank: int) -> int:
        """An update or weights from a file beside the network's, or an evaluation; in a refresh with one more bank."""
        return max(self._student, self._inference + (bank if config.refreshes_bank else 0))

    def _pixels(self, load: measure.Load) -> int:
        """The rendered views of a step, and once more where those of one size are put together."""
        views = self._config.views
        values = load.large * views.large.size**2 + load.small * views.small.size**2
        return 2 * 4 * len(views.mean) * values

    def _has_teacher(self, config: Config, mode: TeacherMode) -> bool:
        return config.teacher_mode == mode and bool(self._asks)

    def _bank_rows(self, config: Config) -> int:
        return imagined.rows(config, self._asks)

    def _feature_bytes(self, config: Config) -> int:
        return self._bank_rows(config) * make_codec(config.bank_codec, self._answer_size).row_bytes

    def _bank_bytes(self, config: Config) -> int:
        return self._feature_bytes(config) + self._bank_rows(config) * _KEY_BYTES

    def _bank_in_memory(self, config: Config) -> int:
        if self._on_gpu:
            return self._bank_bytes(config) if config.bank_residency == "device" else 0
        return _resident(config, self._feature_bytes(config)) + self._bank_rows(config) * _KEY_BYTES

    def _inputs_in_memory(self, config: Config) -> int:
        rows, features = self._inputs
        if self._on_gpu:
            return features + rows * _KEY_BYTES if config.bank_residency == "device" else 0
        return _resident(config, features) + rows * _KEY_BYTES


def _resident(config: Config, features: int) -> int:
    """Bytes of stored features that stay in memory; on disk, small files are mapped, and so resident."""
    return 0 if config.bank_residency == "disk" and features > LARGEST_MAPPING else features
