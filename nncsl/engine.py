"""The loop over tasks. Read it from top to bottom: that is the protocol; what is learned in it is a method's."""

import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nncsl import accounting, evaluation, methods, networks, optim, passes, replay, teachers
from nncsl.batches import Batch, Draws, Moment, Renderer
from nncsl.config import Config
from nncsl.config import build as configs
from nncsl.data.sources import Source
from nncsl.data.tasks import Stream, Task
from nncsl.data.views import as_pixels
from nncsl.distributed import ALONE, Ranks
from nncsl.interruption import Interrupted, Interruption
from nncsl.methods.base import Answer, Losses, Method, unit_projections
from nncsl.passes import limits
from nncsl.record import checkpoint, ledger, remembered, snapshots
from nncsl.record.journal import NoJournal, open_journal
from nncsl.record.state import RunState
from nncsl.replay import Memory
from nncsl.steps import arrival, graphs, stored
from nncsl.steps.ahead import Ahead
from nncsl.steps.ahead import chosen as ahead_chosen
from nncsl.steps.arrival import Setup, look
from nncsl.steps.divergence import DivergenceError, Lookout, diverged
from nncsl.steps.transfer import constant
from nncsl.steps.undo import Undo
from nncsl.teachers import Surroundings, Teacher
from nncsl.terminal import Reporter

__all__ = ["DivergenceError", "Moment", "Run", "Setup", "Stream", "look", "record", "save", "set_up", "train"]


@dataclass(frozen=True)
class Run:
    """What does not change while a run goes on."""

    config: Config
    source: Source
    tasks: tuple[Task, ...]
    folder: Path
    device: torch.device
    reporter: Reporter
    ranks: Ranks = ALONE

    @property
    def checkpoint_path(self) -> Path:
        return self.folder / "checkpoint" / "state.pt"


def train(run: Run, saved: dict[str, Any] | None = None) -> tuple[Method, RunState]:
    """Train over all tasks, from the beginning or from a checkpoint; return the method and what was measured."""
    config, source, device, reporter, ranks = run.config, run.source, run.device, run.reporter, run.ranks
    method = methods.build(config, source.num_classes).to(device)
    optimizers: list[torch.optim.Optimizer] = []
    if saved is None:
        state = RunState()
        state.untrained = evaluation.untrained_accuracy(
            method, source, run.tasks, config.views, device, ranks, reporter.track
        )
    else:
        with checkpoint.understood(run.checkpoint_path):
            state = RunState.unpack(saved["state"])
            optimizers = methods.restore(method, saved, run.tasks, state)
        saved = {key: saved[key] for key in ("scaler", "teacher")}  # the rest has been taken
    stream = Stream(source, run.tasks)
    journal = open_journal(run.folder) if ranks.writes else NoJournal()
    journal.rewind(state.task, state.epochs)
    state.peak(teacher=0, bank=0, data=source.nbytes, memory=0)

    for sentence in limits.sentences(method.network, config, ranks):
        reporter.say(sentence)

    lookout = Lookout(config, run.folder, device)
    with Interruption(reporter.say) as interruption, Ahead(on=ahead_chosen(config, device)) as ahead:
        around = Surroundings(config, source.fingerprint, run.folder, device, reporter, interruption, ranks)
        teacher = teachers.open_teacher(method, around)
        inputs = stored.open_inputs(method, around)
        for index in range(state.task, len(run.tasks)):
            # The task: its data, and how it will be learned.
            setup = set_up(run, stream, state.memory, index, method.keeps())
            if method.remembers_first and state.remembered <= index:
                remember(run, method, state, stream, setup.task)
                setup = set_up(run, stream, state.memory, index, method.keeps())
            setup = inputs.begin(setup, state)
            task = setup.task
            state.steps = [*state.steps[:index], task.steps]
            state.memory_sizes = [*state.memory_sizes[:index], task.remembered]
            phases = methods.phases(method, task)
            names = [source.class_names[c] for c in task.classes]
            reporter.begin_task(index, names, phases, state.phase, state.epoch, state.step)
            for number in range(state.phase, len(phases)):
                phase = phases[number]
                if not state.begun:
                    optimizers = methods.begin(method, number, phase, task)
                    with networks.evaluating(method):
                        method.prepare(phase, task, state.memory, setup.render)
                method.mode(phase, task)
                state.peak(**accounting.module_bytes(method), gradients=accounting.gradient_bytes(method))
                forward = ranks.forward(method.network, how_to_pass(config, run.folder))
                scaler = torch.amp.GradScaler(device.type, enabled=config.precision == "fp16")
                if saved is not None and state.begun:
                    scaler.load_state_dict(saved["scaler"])

                # The teacher: what the network is before its first step of this phase.
                asks = {name: asked for name, asked in method.asks(phase, task, state.memory).items() if len(asked.ids)}
                kept = saved["teacher"] if saved is not None and state.begun else None
                teacher.begin(asks, phase, task, setup.render, state, kept)
                state.keep(ledger.kept(source.train, state.memory, method, teacher))
                saved, kept, state.begun = None, None, True
                save(run, state, method, optimizers, scaler, teacher, lookout)

                reporter.begin_phase(phase)
                compute = graphs.steps_of(method, scaler, device, reporter.say, shared=ranks.units > 1)
                prepare = partial(arrival.prepare, method, setup, teacher, whole=ahead.on or device.type != "cpu")
                undo = Undo(method, alone=ranks.alone)
                for epoch in range(state.epoch, phase.epochs):
                    pool = inputs.pool(epoch, teacher.pool)
                    started = time.monotonic()
                    moments = (
                        Moment(number, epoch, step, epoch * phase.steps + step, pool)
                        for step in range(state.step, phase.steps)
                    )
                    for drawn in ahead.each(prepare, moments, pure=method.draws_ahead):
                        lr = optim.set_rates(optimizers, phase.rate(phase.progress(drawn.now)))
                        undo.mark()
                        first = drawn.now.number == 0
                        try:
                            with interruption.dispensable(undo.possible):
                                seen, hidden = arrival.arrive(method, setup, phase, teacher, forward, drawn)
                                with accounting.saved_activations(method) if first else nullcontext() as activations:
                                    losses = compute(seen)
                                    ranks.sum_gradients()
                        except Interrupted:  # in the middle of a long step: what is saved is the moment before it
                            undo.restore()
                            state.seconds += time.monotonic() - started
                            ahead.settle()
                            save(run, state, method, optimizers, scaler, teacher, lookout)
                            raise
                        lookout.note(losses, index, epoch, lr)
                        for optimizer in filter(optim.has_gradient, optimizers):
                            scaler.step(optimizer)
                        scaler.update()

                        state.step = drawn.now.step + 1
                        if activations is not None:
                            used = sum(map(accounting.optimizer_bytes, optimizers))
                            state.peak(activations=activations.peak, optimizer=used)
                        record(state, losses, seen.batch, hidden, stream)
                        reporter.step(epoch, lookout.latest, images=seen.views)
                        stop = ranks.agreed(interruption.requested)
                        if stop and state.step < phase.steps:  # an epoch's last step is saved below
                            state.seconds += time.monotonic() - started
                            ahead.settle()
                            save(run, state, method, optimizers, scaler, teacher, lookout)
                            raise Interrupted

                    lookout.flush()
                    state.seconds += time.monotonic() - started
                    means = state.epoch_means()
                    rate = state.images / max(state.seconds, 1e-9)
                    facts = {"phase": phase.name} if len(phases) > 1 else {}
                    journal.epoch(index, state.epochs, **facts, lr=lr, images_per_second=rate, **means)
                    reporter.epoch(epoch, means, rate)
                    state.end_epoch()
                    save(run, state, method, optimizers, scaler, teacher, lookout)
                    if ranks.agreed(interruption.requested):
                        raise Interrupted
                if phase.name in method.measured:
                    state.extra.setdefault(method.measured[phase.name], []).append(seen_accuracy(run, method, task))
                state.end_phase()

            # The boundary: remember, conclude, measure, and let the rest of the task's data go.
            with interruption.dispensable(lambda: ranks.alone):  # until it is saved, it can be done again
                if config.batchnorm_recalibrate and index == 0:
                    networks.recalibrate(method.network, plain_batches(run, stream, task.unlabeled))
                if method.uses_memory and not method.remembers_first:
                    remember(run, method, state, stream, task)
                with networks.evaluating(method):
                    method.end(task, state.memory, setup.render)
                state.keep(ledger.kept(source.train, state.memory, method, teacher))
                measure(run, method, state, task)
            results = {"accuracy": state.accuracy_matrix[-1], "seen_accuracy": state.seen_accuracy[-1]}
            journal.task(index, **results, kept=ledger.with_total(state.kept[index]))
            if method.classifies:
                reporter.accuracies(index, state.accuracy_matrix[-1], state.seen_accuracy[-1])
            state.end_task()
            save(run, state, method, [], None, teacher, lookout)
        teacher.close()
        inputs.close()
    return method, state


def set_up(run: Run, stream: Stream, memory: Memory, index: int, kept: np.ndarray | None = None) -> Setup:
    """Move on to a task: from here on its images are visible, and of earlier ones those in the memory.

    kept: images that the method remembers besides.
    """
    config = run.config
    task = stream.begin(index, memory.ids, memory.unlabeled, kept)
    draws = Draws(task, memory, config)
    render = Renderer(stream, config.views, seed=config.seed, task=index, device=run.device)
    task = replace(task, steps=draws.steps_per_epoch, remembered=len(memory.ids))
    return Setup(task, draws, render, stream, run.device, run.ranks)


def record(state: RunState, losses: Losses, batch: Batch, known: Mapping[str, Tensor], stream: Stream) -> None:
    """Add a step to the epoch's record. Hidden labels are used here, for the curve, and nowhere else.

    known: those that came with the batch; others would have to be waited for.
    """
    for name, part in losses.parts.items():
        state.add(name, part)
    right = []
    for group, guessed in losses.guesses.items():
        hidden = known.get(group)
        if hidden is None:
            hidden = torch.from_numpy(stream.monitor(batch[group].keys.ids)).to(guessed.device)
        if losses.among:
            guessed = constant(losses.among, guessed.device, torch.int64)[guessed]
        right.append(100.0 * stream.share_right(guessed, hidden))
    if right:
        state.add("unlabeled_accuracy", torch.stack(right).mean())
    state.images += sum(map(len, batch.values()))


def remember(run: Run, method: Method, state: RunState, stream: Stream, task: Task) -> None:
    """Put the task's images into the memory, labeled ones by the method's preference."""
    config = run.config

    def answers(ids: np.ndarray, answer: Answer) -> Tensor:
        track, caption = run.reporter.track, "choosing what to remember"
        return evaluation.answers(method, stream, ids, config.views, run.device, answer, run.ranks, track, caption)

    ranking = method.rank(task, state.memory, answers)
    state.memory = replay.after_task(state.memory, task, config, ranking, everything=method.remembers_all)
    state.remembered = task.index + 1
    kept = np.concatenate([state.memory.ids, state.memory.unlabeled, method.keeps()])
    state.peak(memory=accounting.image_bytes(run.source.train, kept))


def plain_batches(run: Run, stream: Stream, ids: np.ndarray) -> Iterator[Tensor]:
    """Give the images as evaluation sees them, in batches of the training's size; a smaller last one is left out."""
    size = min(run.config.unlabeled_batch, len(ids))
    for part in np.split(ids[: len(ids) // size * size], len(ids) // size):
        yield evaluation.plain_images(stream, part, run.config.views, run.device)


def seen_accuracy(run: Run, method: Method, task: Task) -> float | None:
    """Return percent correct among the classes seen so far; None where their test images are gone."""
    track = run.reporter.track
    scores, labels = evaluation.test_scores(method, run.source, run.config.views, run.device, run.ranks, track)
    return evaluation.seen_accuracy(scores, labels, run.tasks[: task.index + 1])[0]


def measure(run: Run, method: Method, state: RunState, task: Task) -> None:
    """Add a row to the accuracy matrix, the accuracy over seen classes, and how well the next task is known already."""
    source, policy, track = run.source, run.config.views, run.reporter.track
    # All outputs: what is known of a task ahead must not depend on how many tasks were known of.
    scores, labels = evaluation.output_scores(method, source, policy, run.device, run.ranks, track)
    seen = torch.from_numpy(task.seen_mask(scores.shape[1]))
    state.accuracy_matrix.append(evaluation.accuracy_by_task(scores, labels, run.tasks, seen))
    accuracy, predicted = evaluation.seen_accuracy(scores, labels, run.tasks[: task.index + 1])
    state.seen_accuracy.append(accuracy)
    if task.index + 1 < len(run.tasks):
        state.ahead.append(evaluation.accuracy_ahead(scores, labels, run.tasks[task.index + 1]))
    chosen = snapshots.shown(source.test_labels)
    projections = evaluation.answers(
        method, source.test, chosen, policy, run.device, unit_projections, run.ranks, track
    )
    with networks.evaluating(method):
        made = {label: as_pixels(images, policy) for label, images in method.samples(task).items()}
    if run.ranks.writes:
        snapshots.keep_snapshot(run.folder, task.index, projections, predicted, labels, source.class_names, made)


def save(
    run: Run,
    state: RunState,
    method: Method,
    optimizers: list[torch.optim.Optimizer],
    scaler: torch.amp.GradScaler | None,
    teacher: Teacher,
    lookout: Lookout,
) -> None:
    """Write the checkpoint, unless the network has just broken; then let go of what only an older one needed."""
    lookout.flush()
    for what, values in (("weights", method.parameters()), ("BatchNorm's statistics", method.network.buffers())):
        if not all(bool(torch.isfinite(each).all()) for each in values):
            where = f"task {state.task + 1}, epoch {state.epoch + 1}"
            raise diverged(run.config, run.folder, f"{what} are not finite in {where}")
    state.peak(total=accounting.process_peak(run.device))
    run.ranks.check_same(method)
    if run.ranks.writes:
        contents = {"config": configs.plain(run.config), "state": state.pack(), "method": method.state_dict()}
        contents |= {"optimizers": [o.state_dict() for o in optimizers], "scaler": scaler and scaler.state_dict()}
        with remembered.kept(run.folder, run.source, state.memory, method.keeps()):
            checkpoint.save(run.checkpoint_path, contents | {"teacher": teacher.contents()})
        teacher.after_save()
    accounting.return_free_memory()  # sweeps, steps and evaluation leave different holes in the heap


def how_to_pass(config: Config, folder: Path) -> passes.Passes:
    """Return the configured trade of memory for time."""
    return passes.Passes(config.micro_batch, config.recompute, config.spill, folder)
