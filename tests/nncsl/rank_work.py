"""What ranks are asked to do in tests: one step's gradients, or a whole run."""

import copy
import itertools
import os
import signal

import torch

from nncsl import config, engine, methods, networks, passes
from nncsl.config import build
from nncsl.featurebank import fingerprint
from nncsl.interruption import Interrupted
from nncsl.record import checkpoint
from tests.nncsl.conftest import SMALL, run_maker
from tests.nncsl.crew import first_of, own_folder
from tests.nncsl.scenes import SecondTask


def loaded(*assignments):
    return config.load("digits", map(build.parse_assignment, [*SMALL, *assignments]))


def gradients_of_all_counts(ranks, settings, folder, hows=({},), dtype=torch.float64):
    """One step's gradients in every phase of a second task, with both BatchNorm policies, every way of passing, and
    the first 1, 2, ... of the ranks: by (phase, frozen, way, count)."""
    found = {}
    scene = SecondTask(loaded(*settings), run_maker(own_folder(folder, ranks, "scene")))
    random = torch.Generator().manual_seed(0)
    for number, phase in enumerate(scene.method.phases(scene.task)):
        if number:
            scene.begin(number)
        teacher = scene.teacher()
        with torch.no_grad():  # a student that has left its teacher
            for p in scene.network.parameters():
                p.add_(0.05 * torch.randn(p.shape, generator=random))
        for frozen, how in itertools.product((True, False), range(len(hows))):
            for count in range(ranks.rank + 1, ranks.count + 1):
                method = copy.deepcopy(scene.method).to(dtype)
                networks.set_training(method, freeze_batchnorm=frozen)
                few = first_of(ranks, count)
                result = gradients(scene, method, teacher, few, passes.Passes(**hows[how]))
                found[phase.name, frozen, how, count] = {name: value.numpy() for name, value in result.items()}
        teacher.close()
        scene.state.generation = None
    return found


def gradients(scene, method, teacher, ranks, how):
    """Loss, gradients and buffers after one step, by name."""
    scene.setup = scene.setup._replace(ranks=ranks)
    forward = ranks.forward(method.network, how)
    losses = scene.losses(method, teacher, pool=teacher.pool(0), forward=forward)
    losses.total.backward()
    ranks.sum_gradients()
    found = {f"gradient of {name}": p.grad for name, p in method.named_parameters() if p.grad is not None}
    return {"loss": losses.total.detach(), **found, **dict(method.named_buffers())}


def trained(ranks, settings, folder, stop=None, go_on=False):
    """Train over all tasks in ``folder``, or up to a SIGTERM that one rank gets in one step: (rank, task, number).

    Returns the fingerprint of what was learned and the memory's ids, or None after a stop.
    """
    settings = loaded(*settings)
    run = run_maker(folder)(settings, "run", ranks)
    declared = methods.find(settings.method)
    losses = declared.losses

    def stopped(self, step):
        if (ranks.rank, step.task.index, step.now.number) == stop:
            os.kill(os.getpid(), signal.SIGTERM)
        return losses(self, step)

    declared.losses = stopped
    try:
        method, state = engine.train(run, checkpoint.load(run.checkpoint_path) if go_on else None)
    except Interrupted:
        return None
    finally:
        declared.losses = losses
    return fingerprint(method.state_dict()), state.memory.ids.tolist(), state.memory.unlabeled.tolist()
