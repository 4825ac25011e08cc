"""The loop over tasks. Read it from top to bottom: that is the method."""

import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nncsl import accounting, evaluation, methods, networks, objectives, optim, passes, replay, teachers
from nncsl.batches import Batch, Batches, ViewKeys, render
from nncsl.config import Config, build
from nncsl.data.sources import Source
from nncsl.data.tasks import Stream, Task
from nncsl.errors import UserError
from nncsl.methods.base import Classes, Losses, Student
from nncsl.networks import Network
from nncsl.passes import Forward
from nncsl.record import checkpoint
from nncsl.record.journal import open_journal
from nncsl.record.snapshots import keep_snapshot
from nncsl.record.state import RunState
from nncsl.replay import Memory, Ranking
from nncsl.teachers import Pixels, Render
from nncsl.teachers.bank import Teaching
from nncsl.terminal import Interrupted, Interruption, Reporter


class DivergenceError(UserError):
    """The loss is not a number any more."""


@dataclass(frozen=True)
class Run:
    """What does not change while a run goes on."""

    config: Config
    source: Source
    tasks: tuple[Task, ...]
    folder: Path
    device: torch.device
    reporter: Reporter

    @property
    def checkpoint_path(self) -> Path:
        return self.folder / "checkpoint" / "state.pt"


def train(run: Run, saved: dict[str, Any] | None = None) -> tuple[Network, RunState]:
    """Trains over all tasks, from the beginning or from a checkpoint; returns the network and what was measured."""
    config, source, device, reporter = run.config, run.source, run.device, run.reporter
    method = methods.find(config.method)
    network = build_network(config, source).to(device)
    stream = Stream(source, run.tasks)
    if saved is None:
        state = RunState()
        logits, labels = evaluation.test_logits(network, source, config.views, device)
        state.untrained = evaluation.accuracy_by_task(logits, labels, run.tasks, seen=None)
    else:
        state = RunState.unpack(saved["state"])
        network.load_state_dict(saved["network"])
    journal = open_journal(run.folder)
    journal.rewind(state.task, state.epoch)
    state.peak(student=networks.nbytes(network), gradients=accounting.gradient_bytes(network))
    state.peak(teacher=0, bank=0, data=source.nbytes)

    with Interruption() as interruption:
        distills = method.distills
        teaching = Teaching(config, source, network, run.folder, device, reporter, interruption, distills=distills)
        for index in range(state.task, len(run.tasks)):
            # The task: its data, and the network prepared for it.
            task = stream.begin(index, state.memory.ids, state.memory.unlabeled)
            old = tuple(c for earlier in run.tasks[:index] for c in earlier.classes)
            classes = Classes(task.classes, old, source.num_classes)
            batches = Batches(task, state.memory, stream, config)
            views = view_renderer(run, stream, index)
            frozen = config.batchnorm == "freeze-after-first" and index > 0
            networks.set_mode(network, training=True, freeze_batchnorm=frozen)
            forward = passes.forward(network, how_to_pass(config, run.folder))
            optimizer = optim.build(network, config)
            scaler = torch.amp.GradScaler(device.type, enabled=config.precision == "fp16")
            if saved is not None and state.epoch + state.step:
                optimizer.load_state_dict(saved["optimizer"])
                scaler.load_state_dict(saved["scaler"])

            # The teacher: what the network was, before its first step of this task.
            teacher = teaching.begin(state, task, views, saved)
            saved = None
            save(run, state, network, optimizer, scaler, teaching)

            steps = batches.steps_per_epoch
            names = [source.class_names[c] for c in task.classes]
            reporter.begin_task(index, names, config.epochs * steps, done=state.epoch * steps + state.step)
            for epoch in range(state.epoch, config.epochs):
                pool, teacher = teaching.pool(epoch, teacher)
                started = time.monotonic()
                for step in range(state.step, steps):
                    lr = optim.set_learning_rate(optimizer, config, epoch * steps + step, steps)
                    if method.uses_unlabeled:
                        batch = batches.draw(epoch, step, pool)
                    else:
                        batch = batches.draw_labeled(epoch, step, replay=method.uses_memory)
                    pixels = Pixels(views(batch.large), views(batch.small), views(batch.supports))

                    first = epoch + step == 0
                    optimizer.zero_grad(set_to_none=True)
                    with accounting.saved_activations(network) if first else nullcontext() as activations:
                        with networks.autocast(config.precision, device):
                            targets = teacher.targets(batch, pixels)  # first: nothing else is held in memory yet
                            student = embed(network, forward, pixels, batch, classes, method.backbone_share(config))
                        losses = method.losses(student, batch, targets, classes, config)
                        check_finite(run, losses, index, epoch, lr)
                        scaler.scale(losses.total).backward()
                    scaler.step(optimizer)
                    scaler.update()

                    state.step = step + 1
                    if activations is not None:
                        state.peak(activations=activations.peak, optimizer=accounting.optimizer_bytes(optimizer))
                    record(state, losses, batch, stream)
                    reporter.step(epoch, losses.parts, images=batch.views)
                    if interruption.requested and state.step < steps:  # an epoch's last step is saved below
                        state.seconds += time.monotonic() - started
                        save(run, state, network, optimizer, scaler, teaching)
                        raise Interrupted

                state.seconds += time.monotonic() - started
                means = state.epoch_means()
                rate = state.images / max(state.seconds, 1e-9)
                journal.epoch(index, epoch, lr=lr, images_per_second=rate, **means)
                reporter.epoch(epoch, "  ".join(f"{k} {v:.3f}" for k, v in means.items()) + f"  {rate:.0f} images/s")
                state.epoch, state.step, state.sums = epoch + 1, 0, {}
                save(run, state, network, optimizer, scaler, teaching)
                if interruption.requested:
                    raise Interrupted

            # The boundary: measure, remember, and let the rest of the task's data go.
            measure(run, network, state, classes)
            journal.task(index, accuracy=state.accuracy_matrix[-1], seen_accuracy=state.seen_accuracy[-1])
            reporter.accuracies(index, state.accuracy_matrix[-1], state.seen_accuracy[-1])
            if method.uses_memory:
                ranking = preference(run, network, stream, task, state.memory)
                labels_now = stream.labels(task.labeled)
                state.memory = replay.update(
                    state.memory, task.labeled, labels_now, sorted(classes.seen), config.memory, ranking
                )
                state.memory = replay.update_unlabeled(
                    state.memory, task.unlabeled, index + 1, config.unlabelled_memory, config.seed
                )
            state.task, state.epoch, state.generation, state.teacher = index + 1, 0, None, None
            save(run, state, network, optimizer, scaler, teaching)
        teaching.close()
    return network, state


def embed(
    network: Network, forward: Forward, pixels: Pixels, batch: Batch, classes: Classes, backbone_share: float
) -> Student:
    """One pass over everything of the large size, one over the small views."""
    large, images = len(pixels.large), len(batch.replayed)
    outputs = forward(torch.cat([pixels.large, pixels.supports]))
    features, projections = [outputs.features[:large]], [outputs.projections[:large]]
    if len(pixels.small):
        small = forward(pixels.small)
        features.append(small.features)
        projections.append(small.projections)
    support_features = outputs.features[large:]
    if backbone_share:
        support_features = objectives.scale_gradient(support_features, backbone_share)
    else:
        support_features = support_features.detach()
    logits = networks.mask_unseen(network.head(support_features), classes.seen_mask(support_features.device))
    return Student(
        network=network,
        queries=torch.cat(projections).unflatten(0, (-1, images)) if images else outputs.projections[:0],
        query_features=torch.cat(features).unflatten(0, (-1, images)) if images else outputs.features[:0],
        supports=outputs.projections[large:],
        logits=logits,
    )


def record(state: RunState, losses: Losses, batch: Batch, stream: Stream) -> None:
    """Adds a step to the epoch's record. Hidden labels are used here, for the curve, and nowhere else."""
    for name, part in losses.parts.items():
        state.add(name, part)
    if losses.predictions is not None:
        images = len(batch.replayed)
        hidden = torch.from_numpy(stream.monitor(batch.large.ids[:images])).to(losses.predictions.device)
        state.add("unlabeled_accuracy", 100.0 * (losses.predictions == hidden).double().mean())
    state.add("steps", torch.ones(()))
    state.images += batch.views


def measure(run: Run, network: Network, state: RunState, classes: Classes) -> None:
    """A row of the accuracy matrix, the accuracy over seen classes, and how well the next task is known already."""
    logits, projections, labels = evaluation.test_outputs(network, run.source, run.config.views, run.device)
    seen = classes.seen_mask(torch.device("cpu"))
    index = len(state.accuracy_matrix)
    state.accuracy_matrix.append(evaluation.accuracy_by_task(logits, labels, run.tasks, seen))
    predicted = networks.mask_unseen(logits, seen).argmax(dim=1)
    state.seen_accuracy.append(evaluation.percent(predicted, labels, classes.seen))
    if index + 1 < len(run.tasks):
        state.ahead.append(evaluation.accuracy_by_task(logits, labels, run.tasks, seen=None)[index + 1])
    keep_snapshot(run.folder, index, projections, predicted, labels, run.source.class_names)


def preference(run: Run, network: Network, stream: Stream, task: Task, memory: Memory) -> Ranking:
    """The configured order of preference among the task's labeled images and the memory's."""
    config = run.config
    if config.memory_selection == "random" or config.memory == 0:
        return replay.random_ranking(config.seed)
    ids = np.concatenate([task.labeled, memory.ids])
    features = evaluation.answers(network, stream, ids, config.views, run.device, teachers.unit_projections)
    return replay.herded_ranking(features, ids)


def save(
    run: Run,
    state: RunState,
    network: Network,
    optimizer: optim.Lars,
    scaler: torch.amp.GradScaler,
    teaching: Teaching,
) -> None:
    """The checkpoint, unless the network has just broken; then what only an older checkpoint needed goes."""
    if not all(bool(torch.isfinite(p).all()) for p in network.parameters()):
        raise diverged(run, f"weights are not finite in task {state.task + 1}, epoch {state.epoch + 1}")
    state.peak(total=accounting.process_peak(run.device))
    contents = {"config": build.plain(run.config), "state": state.pack(), "network": network.state_dict()}
    contents |= {"optimizer": optimizer.state_dict(), "scaler": scaler.state_dict(), **teaching.contents()}
    checkpoint.save(run.checkpoint_path, contents)
    teaching.after_save()
    accounting.return_free_memory()  # sweeps, steps and evaluation leave different holes in the heap


def build_network(config: Config, source: Source) -> Network:
    """The network as it is before the first step."""
    feature_map = config.distillation == "feature"
    channels = len(config.views.mean)
    return networks.build(config.network, channels, source.num_classes, config.seed, feature_map=feature_map)


def how_to_pass(config: Config, folder: Path) -> passes.Passes:
    """The configured trade of memory for time."""
    return passes.Passes(config.micro_batch, config.recompute, config.spill, folder)


def view_renderer(run: Run, stream: Stream, task: int) -> Render:
    """Keys to pixels, for this task."""

    def views(keys: ViewKeys) -> Tensor:
        return render(keys, stream, run.config.views, seed=run.config.seed, task=task, device=run.device)

    return views


def check_finite(run: Run, losses: Losses, task: int, epoch: int, lr: float) -> None:
    """Stops a run that has diverged; its last good checkpoint stays."""
    if bool(torch.isfinite(losses.total)):
        return
    parts = ", ".join(f"{name} {part.item():.4g}" for name, part in losses.parts.items())
    raise diverged(
        run, f"the loss is {losses.total.item()} in task {task + 1}, epoch {epoch + 1} ({parts}; lr {lr:.4g})"
    )


def diverged(run: Run, seen: str) -> DivergenceError:
    """What was seen, and what to try."""
    precision = ", or --set precision=fp32" if run.config.precision != "fp32" else ""
    return DivergenceError(
        f"{seen}. The last good checkpoint is in {run.folder}. Start a new run with a lower --set lr_peak, "
        f"a longer --set warmup_epochs{precision}"
    )
