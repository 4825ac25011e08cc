"""From a configuration to its data: opening, preparing, and checking that the protocol is possible on it."""

from dataclasses import dataclass

import numpy as np

from nncsl.config import Config
from nncsl.data import cifar
from nncsl.data.division import task_sizes
from nncsl.data.labels import LabelBudget
from nncsl.data.sources import NO_CLASS, SOURCES, Source, SourceOptions, open_source, own_place, unknown
from nncsl.data.tasks import Task, check_memory, split_tasks
from nncsl.data.user_files import as_text
from nncsl.errors import ConfigError, DataError
from nncsl.files import expanded


@dataclass(frozen=True)
class Facts:
    """What is known of a data set before it is opened."""

    classes: int
    train_images: int
    smallest_class: int
    image_bytes: int  # of training and test images, where they are held in memory
    needs: str


KNOWN = {
    "digits": Facts(10, 1297, 124, 1797 * 64, "nothing: it comes with scikit-learn"),
    "cifar10": Facts(10, 50_000, 5000, 60_000 * 3072, "--data-dir with cifar-10-batches-py or cifar-10-batches-bin"),
    "cifar100": Facts(100, 50_000, 500, 60_000 * 3072, "--data-dir with cifar-100-python or cifar-100-binary"),
    "imagenet100": Facts(100, 126_689, 732, 0, "--data-dir with train/ and val/, a folder per class (ImageNet's ids)"),
}


def open_data(config: Config) -> tuple[Source, tuple[Task, ...]]:
    """The configured data set and its tasks; a ConfigError or DataError says what does not fit."""
    check_known(config)
    source = open_source(config.dataset, source_options(config))
    check_channels(config, source)
    check_memory(config.memory, task_sizes(source.num_classes, config.tasks, config.task_sizes, source.name))
    tasks = split_tasks(
        source,
        tasks=config.tasks,
        sizes=config.task_sizes,
        labels=config.labels,
        seed=config.seed,
        class_order=config.class_order,
        unlabeled_fraction=config.unlabeled_fraction,
    )
    return source, tasks


def check_channels(config: Config, source: Source) -> None:
    """Views are normalized by as many values as images have channels."""
    channels = source.train.gather(np.zeros(1, np.int64)).pixels.shape[-1]
    if len(config.views.mean) != channels or len(config.views.std) != channels:
        raise ConfigError(
            f"views.mean has {len(config.views.mean)} values, but {source.name} has {channels} channels: "
            f"choose another --preset or set views.mean and views.std"
        )


def source_options(config: Config) -> SourceOptions:
    """The part of the configuration that sources see; the short side leaves room for crops as 256 does for 224."""
    large = config.views.large.size
    return SourceOptions(
        data_dir=expanded(config.data_dir) if config.data_dir else None,
        cache_dir=expanded(config.cache_dir) if config.cache_dir else None,
        short_side=config.cache_short_side or round(large * 256 / 224),
        class_list=expanded(config.class_list) if config.class_list else None,
        test_fraction=config.test_fraction,
        verify=config.verify_data,
        skip_unreadable=config.skip_unreadable,
        max_pixels=config.max_pixels,
    )


def check_known(config: Config) -> None:
    """What can be refused without opening the data: tasks, labels and memory against a known data set's size."""
    _check_name(config.dataset)
    facts = KNOWN.get(config.dataset)
    if facts is None or config.class_list is not None:
        return
    check_memory(config.memory, task_sizes(facts.classes, config.tasks, config.task_sizes, config.dataset))
    if any((budget.per_class or 0) > facts.smallest_class for budget in LabelBudget.parse(config.labels).each):
        raise ConfigError(
            f"labels={config.labels!r}: the smallest class of {config.dataset} has {facts.smallest_class} training "
            f"images; ask for at most {facts.smallest_class}/class"
        )


def _check_name(name: str) -> None:
    if name not in SOURCES and not own_place(name)[0]:
        raise unknown(name)
    if as_text(name) != name:  # a run could not write it down
        raise ConfigError(f"dataset={as_text(name)!r}: the name is not UTF-8; rename it or link to it")


def prepare(config: Config) -> str:
    """Downloads or decodes what is not there yet, checks it, and says what was found."""
    from nncsl.data import packed  # and Pillow, which a list of data sets need not wait for

    _check_name(config.dataset)
    version = {"cifar10": cifar.CIFAR10, "cifar100": cifar.CIFAR100}.get(config.dataset)
    if version is not None and config.data_dir is not None:
        folder = expanded(config.data_dir)
        if cifar.find(version, folder) is None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise DataError(f"{folder} can't be created: {error.strerror}; choose another --data-dir") from error
            cifar.download(version, folder)
    options = source_options(config)
    source = open_source(config.dataset, options)
    compared = sum(map(packed.verify, source.caches))
    return "\n".join([_found(source), *_cached(source, options, compared), *_not_used(source)])


def _found(source: Source) -> str:
    unknown = int((source.train_labels == NO_CLASS).sum())
    of_no_class = f" ({unknown} of no class)" if unknown else ""
    return (
        f"{source.name}: {len(source.train)} training{of_no_class} and {len(source.test)} test images in "
        f"{source.num_classes} classes, ready (sha256 {source.fingerprint[:12]}, over every image)"
    )


def _cached(source: Source, options: SourceOptions, compared: int) -> list[str]:
    lines = [f"decoded images: {path}, {path.stat().st_size / 1e6:.1f} MB" for path in source.caches]
    if lines:
        lines.append(f"short side {options.short_side} pixels (--set cache_short_side); {compared} checksums are right")
    return lines


def _not_used(source: Source) -> list[str]:
    lines = []
    if source.ignored:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(source.ignored.items()))
        lines.append(f"ignored: {sum(source.ignored.values())} files that are not read as images: {kinds}")
    if source.left_out:
        lines += [f"left out: {len(source.left_out)} images that can't be read", *map("  {}".format, source.left_out)]
    return lines


def describe() -> list[str]:
    """A table of the known data sets."""
    rows = [("data set", "classes", "train", "needs")]
    rows += [(name, str(f.classes), str(f.train_images), f.needs) for name, f in KNOWN.items()]
    others = [name for name in SOURCES if name not in KNOWN]
    rows += [(name, "?", "?", (SOURCES[name].__doc__ or "").split("\n")[0]) for name in others]
    own = {
        "folder:PATH": "a sub-folder per class, below train/ and test/ or without (then split by ratio); unlabeled/",
        "csv:FILE": "lines of path,label; an image without a label is one of no class",
        "hf:PATH": "a data set of Hugging Face's on disk, arrow or parquet (needs pyarrow)",
    }
    rows += [(name, "yours", "yours", needs) for name, needs in own.items()]
    return [f"{name:<14}{classes:<9}{train:<9}{needs}" for name, classes, train, needs in rows]
