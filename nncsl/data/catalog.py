"""From a configuration to its data: opening, preparing, and checking that the protocol is possible on it."""

from dataclasses import dataclass

import numpy as np

from nncsl.config import Config
from nncsl.data import cifar
from nncsl.data.labels import LabelBudget
from nncsl.data.sources import SOURCES, Source, SourceOptions, open_source
from nncsl.data.tasks import Task, check_memory, check_tasks, split_tasks
from nncsl.errors import ConfigError, DataError, shown, suggestion
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
    channels = source.train.gather(np.zeros(1, np.int64)).pixels.shape[-1]
    if len(config.views.mean) != channels or len(config.views.std) != channels:
        raise ConfigError(
            f"views.mean has {len(config.views.mean)} values, but {source.name} has {channels} channels: "
            f"choose another --preset or set views.mean and views.std"
        )
    check_memory(config.memory, source.num_classes, config.tasks)
    tasks = split_tasks(
        source,
        tasks=config.tasks,
        labels=config.labels,
        seed=config.seed,
        class_order=config.class_order,
        unlabeled_fraction=config.unlabeled_fraction,
    )
    return source, tasks


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
    )


def check_known(config: Config) -> None:
    """What can be refused without opening the data: tasks, labels and memory against a known data set's size."""
    if config.dataset not in SOURCES and not config.dataset.startswith("folder:"):
        near = suggestion(config.dataset, SOURCES)
        raise ConfigError(
            f"dataset={shown(config.dataset)}: expected one of {', '.join(SOURCES)}, or folder:PATH{near}"
        )
    facts = KNOWN.get(config.dataset)
    if facts is None or config.class_list is not None:
        return
    check_tasks(config.tasks, facts.classes, config.dataset)
    check_memory(config.memory, facts.classes, config.tasks)
    if any((budget.per_class or 0) > facts.smallest_class for budget in LabelBudget.parse(config.labels).each):
        raise ConfigError(
            f"labels={config.labels!r}: the smallest class of {config.dataset} has {facts.smallest_class} training "
            f"images; ask for at most {facts.smallest_class}/class"
        )


def prepare(config: Config) -> str:
    """Downloads or decodes what is not there yet, checks it, and says what was found."""
    version = {"cifar10": cifar.CIFAR10, "cifar100": cifar.CIFAR100}.get(config.dataset)
    if version is not None and config.data_dir is not None:
        folder = expanded(config.data_dir)
        if cifar.find(version, folder) is None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise DataError(f"{folder} can't be created: {error.strerror}; choose another --data-dir") from error
            cifar.download(version, folder)
    source = open_source(config.dataset, source_options(config))
    return (
        f"{source.name}: {len(source.train)} training and {len(source.test)} test images in {source.num_classes} "
        f"classes, ready (sha256 {source.fingerprint[:12]})"
    )


def describe() -> list[str]:
    """A table of the known data sets."""
    rows = [("data set", "classes", "train", "needs")]
    rows += [(name, str(f.classes), str(f.train_images), f.needs) for name, f in KNOWN.items()]
    others = [name for name in SOURCES if name not in KNOWN]
    rows += [(name, "?", "?", (SOURCES[name].__doc__ or "").split("\n")[0]) for name in others]
    rows.append(
        (
            "folder:PATH",
            "yours",
            "yours",
            "a sub-folder per class, below train/ and test/ or without (then split by ratio)",
        )
    )
    return [f"{name:<14}{classes:<9}{train:<9}{needs}" for name, classes, train, needs in rows]
