import pytest
import torch

from nncsl import config, methods, objectives
from nncsl.benchmarks import label_pull
from nncsl.benchmarks.finished import read
from nncsl.errors import ConfigError


def test_the_ratio_is_that_of_the_two_gradients_and_goes_with_the_weight():
    """By hand, from the two losses apart; views that the head does not see are no part of it."""
    torch.manual_seed(0)
    method = methods.build(config.load("digits"), 10)
    network, images, labels = method.network, torch.randn(12, 1, 8, 8), torch.arange(4)
    target = torch.randn(12, 128)

    def losses(weight):
        both, others = network(images), network(images.flip(3))
        rows = objectives.scale_gradient(both.features[8:], weight)
        through = (both.projections * target).sum() + (others.projections * target).sum()
        return objectives.lin_loss(network.head(rows), labels), through, both.features

    found = {}
    for weight in (0.5, 1.0):
        with label_pull.watching() as ratios:
            lin, through, _ = losses(weight)
            (lin + through).backward()
        (found[weight],) = ratios
    lin, through, features = losses(1.0)
    pulls = [torch.autograd.grad(loss, features, retain_graph=True)[0].norm() for loss in (lin, through)]
    assert found[1.0] == pytest.approx(float(pulls[0] / pulls[1]), rel=1e-3)
    assert found[0.5] == pytest.approx(found[1.0] / 2, rel=1e-3)
    assert len(torch.nn.modules.module._global_forward_pre_hooks) == 0  # nothing stays behind


def test_a_row_says_which_weight_would_pull_as_hard_as_the_rest(tmp_path, capsys):
    out = tmp_path / "pull.csv"
    short = ("--set", "epochs=1", "warmup_epochs=0", "network.width=4", "network.hidden=16", "bank_views=1")
    words = [word for setting in short[1:] for word in ("--set", setting)]
    assert label_pull.main([*words, "--out", str(out)]) == 0
    (row,) = read(out, "run", "seed").values()
    ratios = sorted(map(float, row["ratio by task"].split()))
    assert len(ratios) == 5 and all(ratio > 0 for ratio in ratios)
    assert float(row["balance"]) == pytest.approx(float(row["lambda_lin"]) / ratios[2], rel=0.06)
    assert "would pull as hard" in capsys.readouterr().out


def test_each_ratio_belongs_to_its_own_task_however_long_that_is():
    """Digits' last task has fewer steps than the others."""
    assert label_pull.divided([1.0, 3.0, 1.0, 7.0, 9.0], [3, 2]) == [1.0, 8.0]
    with pytest.raises(ConfigError, match="5 of 6 steps"):
        label_pull.divided([1.0] * 5, [3, 3])


def test_a_pass_whose_views_only_the_head_learns_from_has_no_ratio():
    method = methods.build(config.load("digits"), 10)
    with label_pull.watching() as ratios:
        outputs = method.network(torch.randn(4, 1, 8, 8))
        objectives.lin_loss(method.network.head(outputs.features), torch.arange(4)).backward()
    assert ratios == []


@pytest.mark.parametrize(
    ("setting", "named"),
    [("method=er", "lambda_lin"), ("lambda_lin=0", "lambda_lin"), ("distillation=kd", "distillation=kd")],
)
def test_what_it_can_not_measure_is_refused(setting, named, capsys):
    with pytest.raises(SystemExit):
        label_pull.main(["--set", setting])
    assert named in capsys.readouterr().err
