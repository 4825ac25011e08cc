"""Every schedule by its definition, at the places where one kind of curve meets the next."""

import math

import pytest

from nncsl import config
from nncsl.methods import schedules


def test_schedule_of_the_cifar10_preset():
    settings = config.load("cifar10")
    steps = 250 * 19
    rates = [settings.lr_peak * schedules.configured(settings)(step / steps) for step in range(steps)]
    assert rates[0] == pytest.approx(0.08) and rates[190] == pytest.approx(0.4)
    assert rates[95] == pytest.approx(0.24)
    middle = 190 + (steps - 190) // 2
    assert rates[middle] == pytest.approx(0.032 + 0.368 * 0.5 * (1 + math.cos(math.pi * 0.5)), abs=1e-3)
    assert rates[-1] == pytest.approx(0.032, abs=1e-4)
    assert rates[:191] == sorted(rates[:191])


@pytest.mark.parametrize(("epochs", "warmup"), [(1, 0), (2, 1), (1, 1), (40, 4), (250, 10)])
def test_the_warm_up_ends_exactly_at_its_step(epochs, warmup):
    settings = config.load("digits", [{"epochs": epochs, "warmup_epochs": warmup}])
    rate = schedules.configured(settings)
    for steps in (1, 7, 19):
        rates = [rate(step / (epochs * steps)) for step in range(epochs * steps)]
        start, end = settings.lr_start / settings.lr_peak, settings.lr_end / settings.lr_peak
        for step, found in enumerate(rates):
            if step < warmup * steps:
                expected = start + (1 - start) * step / (warmup * steps)
            else:
                part = (step - warmup * steps) / max(1, (epochs - warmup) * steps)
                expected = end + (1 - end) * 0.5 * (1 + math.cos(math.pi * part))
            assert found == pytest.approx(expected, abs=1e-12)


def test_constant_and_cosine():
    assert [schedules.constant()(x) for x in (0.0, 0.5, 0.99)] == [1, 1, 1]
    assert schedules.cosine()(0.0) == 1 and schedules.cosine()(0.5) == pytest.approx(0.5)
    assert schedules.cosine(0.1)(0.999999) == pytest.approx(0.1, abs=1e-5)


def test_milestones_are_passed_exactly():
    rate = schedules.milestones((0.7, 0.9), 0.2)
    assert [rate(epoch / 50) for epoch in (0, 34, 35, 44, 45, 49)] == pytest.approx([1, 1, 0.2, 0.2, 0.04, 0.04])


def test_warm_restarts_at_powers_of_two():
    rate, steps = schedules.warm_restarts(256, low=0.01, first=0.1), 25
    by_epoch = [{rate((epoch * steps + step) / (256 * steps)) for step in range(steps)} for epoch in range(256)]
    assert all(len(rates) == 1 for rates in by_epoch)  # constant within an epoch
    rates = [rates.pop() for rates in by_epoch]
    assert rates[0] == 0.1
    assert [epoch for epoch in range(1, 256) if rates[epoch] == 1] == [1, 2, 4, 8, 16, 32, 64, 128]
    assert rates[96] == pytest.approx(0.01 + 0.99 * 0.5)
    assert rates[255] == min(rates) < 0.011
