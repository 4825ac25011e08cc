import pytest

from nncsl import config
from nncsl.config import build
from nncsl.data.catalog import check_known
from nncsl.errors import ConfigError


def load(*assignments, preset="digits"):
    return config.load(preset, map(build.parse_assignment, assignments))


@pytest.mark.parametrize("preset", config.presets())
def test_presets_load_and_survive_a_round_trip(preset, tmp_path):
    loaded = config.load(preset)
    check_known(loaded)
    path = tmp_path / "config.yaml"
    path.write_text(config.dump(loaded))
    assert config.read(path) == loaded


@pytest.mark.parametrize("preset", config.presets())
def test_presets_show_a_stored_view_no_more_than_five_times(preset):
    loaded = config.load(preset)
    assert (loaded.bank_refresh_epochs or loaded.epochs) <= 5 * loaded.bank_views


# METHOD's table: tasks, labels, memory, epochs, warm-up, lr start/peak/end, unlabeled batch, labels per class,
# color, large px and area, small px and area.
PAPER = {
    "cifar10": (5, "0.8%", 500, 250, 10, 0.08, 0.4, 0.032, 256, 5, 0.5, 32, (0.75, 1), 18, (0.3, 0.75)),
    "cifar100": (10, "0.8%", 500, 250, 10, 0.08, 1.2, 0.032, 256, 3, 0.5, 32, (0.75, 1), 18, (0.3, 0.75)),
    "imagenet100": (20, "1%", 5120, 100, 10, 0.3, 1.2, 0.064, 64, 3, 1.0, 224, (0.14, 1), 96, (0.05, 0.14)),
}


@pytest.mark.parametrize("preset", PAPER)
def test_presets_hold_the_papers_numbers(preset):
    c = config.load(preset)
    crops = (c.views.large.size, c.views.large.area, c.views.small.size, c.views.small.area)
    found = (c.tasks, c.labels, c.memory, c.epochs, c.warmup_epochs, c.lr_start, c.lr_peak, c.lr_end)
    assert (*found, c.unlabeled_batch, c.labeled_per_class, c.views.color, *crops) == PAPER[preset]
    shared = (c.weight_decay, c.momentum, c.tau, c.sharpening, c.smoothing, c.lambda_mem, c.lambda_lin, c.lambda_nnd)
    assert shared == (1e-5, 0.9, 0.1, 0.25, 0.1, 1, 0.005, 0.2)
    assert c.optimizer == "lars" and c.lars_trust == 0.001
    assert (c.head_lr, c.network.projection, c.network.width, c.network.blocks) == (0.12, 128, 64, (2, 2, 2, 2))
    assert c.batchnorm == "freeze-after-first"
    assert c.unlabeled_fraction == (0.5 if preset == "cifar10" else 1.0)


@pytest.mark.parametrize("full", ["cifar10", "cifar100"])
def test_small_presets_change_size_and_schedule_only(full):
    """Tasks, labels, memory, views and losses are the paper's; what differs is said in docs/experiments.md.

    Longer training needs more stored views, and less weight of the labels: both are part of the schedule.
    """
    paper, small = config.load(full), config.load(f"{full}-small")
    differing = {key.split(".")[0] for key, *_ in build.differences(build.plain(paper), build.plain(small))}
    sizes = {"network", "unlabeled_fraction", "unlabeled_batch", "epochs", "warmup_epochs"}
    sizes |= {"bank_refresh_epochs", "bank_support_views", "bank_order", "lambda_lin"}
    assert differing <= sizes | {"lr_start", "lr_peak", "lr_end", "lars_trust", "head_lr", "batchnorm"}
    assert config.preset_for(full) == full


def test_a_methods_own_values_stand_between_preset_and_flags():
    er = load("method=er", preset="cifar10")
    assert er.batchnorm == "train" != load(preset="cifar10").batchnorm
    assert er.unlabeled_batch == load(preset="cifar10").unlabeled_batch
    assert load("method=er", "batchnorm=freeze-after-first", preset="cifar10").batchnorm == "freeze-after-first"


def test_a_methods_values_may_depend_on_the_data_set():
    assert load("method=finetune", preset="cifar10").own["lr"] == 0.1
    assert load("method=finetune", preset="cifar100").own["lr"] == 0.03
    assert load("method=finetune", "own.lr=0.5", preset="cifar100").own == load("method=finetune").own | {"lr": 0.5}
    assert load("method=finetune", "dataset=cifar100", preset="cifar10").own["lr"] == 0.03


def test_overrides_win_in_order():
    assert load("epochs=10", "network.width=8", "epochs=12").epochs == 12
    assert load("network.width=8").network.width == 8
    assert load("network.width=8").network.blocks == load().network.blocks
    assert load("weight_decay=1e-3").weight_decay == 1e-3
    assert load("tau=1").tau == 1.0


def test_a_short_trial_is_not_all_warm_up():
    assert load("epochs=6", preset="cifar10").warmup_epochs == 3
    assert load("epochs=100", preset="cifar10").warmup_epochs == 10
    with pytest.raises(ConfigError, match="warmup_epochs=20 is more than epochs=6"):
        load("epochs=6", "warmup_epochs=20")


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("epoch=3", ["unknown setting epoch", "did you mean epochs"]),
        ("network.widht=3", ["network.widht", "network.width"]),
        ("zzz=3", ["unknown setting zzz", "nncsl config --explain"]),
        ("epochs=many", ["epochs='many'", "int", "str"]),
        ("epochs=1.5", ["epochs=1.5", "int"]),
        ("epochs=true", ["epochs=True", "int"]),
        ("tau=hot", ["tau='hot'", "float"]),
        ("tau=0", ["tau=0", "above 0"]),
        ("tau=-1", ["tau=-1", "above 0"]),
        ("epochs=0", ["epochs=0", "1 or more"]),
        ("memory=-1", ["memory=-1", "0 or more"]),
        ("teacher_mode=feature", ["teacher_mode='feature'", "features, model, none"]),
        ("bank_codec=fp8", ["bank_codec='fp8'", "fp16"]),
        ("network=3", ["network", "mapping"]),
        ("network.blocks=2", ["network.blocks", "list"]),
        ("network.blocks=[2,x]", ["network.blocks[1]", "int"]),
        ("views.large.area=[0.1]", ["views.large.area", "2 values"]),
        ("views.large.area=[0,2]", ["views.large", "area"]),
        ("views.flip=2", ["views", "flip", "2"]),
        ("unlabeled_fraction=0", ["unlabeled_fraction=0"]),
        ("sharpening=2", ["sharpening=2"]),
        ("smoothing=1", ["smoothing=1"]),
        ("views.large.count=1", ["views.large.count=1", "2"]),
        ("network.width=0", ["width=0"]),
        ("labels=some", ["labels='some'", "0.8%", "4/class"]),
        ("epochs", ["epochs", "key=value"]),
        ("a=[", ["yaml"]),
    ],
)
def test_mistakes_are_named(assignment, words):
    with pytest.raises(ConfigError) as error:
        load(assignment)
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("tasks=11", ["tasks=11", "10 classes"]),
        ("tasks=4,3,2", ["4,3,2", "9 classes", "--tasks 4,3,3"]),
        ("labels=500/class", ["500/class", "124"]),
        ("labels=5%,500/class,5%,5%,5%", ["500/class", "124"]),
        ("labels=5%,10%", ["2 budgets", "5 tasks"]),
        ("memory=3", ["memory=3", "8"]),
        ("dataset=mnist", ["mnist", "digits"]),
    ],
)
def test_impossible_combinations_are_refused_before_data_is_read(assignment, words):
    with pytest.raises(ConfigError) as error:
        check_known(load(assignment))
    assert all(word in str(error.value) for word in words), str(error.value)


def test_unlabeled_memory_needs_a_memory():
    with pytest.raises(ConfigError, match="unlabeled_memory needs --memory"):
        load("unlabeled_memory=5", "memory=0")


def test_another_data_set_is_used_whole():
    assert load("dataset=folder:photos", preset="cifar10").unlabeled_fraction == 1.0
    assert load("dataset=cifar10", preset="cifar10").unlabeled_fraction == 0.5


def test_unknown_preset():
    with pytest.raises(ConfigError, match=r"unknown preset 'mnist'.*cifar10"):
        config.load("mnist")


def test_differences_name_the_settings():
    a, b = build.plain(load()), build.plain(load("network.width=8", "tau=0.2"))
    assert build.differences(a, b) == [("tau", 0.1, 0.2), ("network.width", a["network"]["width"], 8)]


def test_settings_by_their_old_names_are_understood(capsys):
    """As flags with a note; in recorded configurations without one, so that old runs stay comparable."""
    new = config.load("digits", [{"unlabeled_batch": 7, "labeled_per_class": 3}])
    assert capsys.readouterr().err == ""
    old = config.load("digits", [{"unlabelled_batch": 7}, {"labelled_per_class": 3}])
    assert old == new
    assert "unlabelled_batch is called unlabeled_batch now" in capsys.readouterr().err
    written = build.plain(new)
    before = {{now: then for then, now in config.RENAMED.items()}.get(key, key): written[key] for key in written}
    assert before != written and config.recorded(before) == new
    assert capsys.readouterr().err == ""
