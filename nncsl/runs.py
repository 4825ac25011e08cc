"""A run: starting it, resuming it, opening it again, and what is said of it in the end."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nncsl import accounting, distributed, engine, evaluation, files, kernels, methods, planner
from nncsl import config as configs
from nncsl.config import Config, build, parse_bytes
from nncsl.data.catalog import open_data
from nncsl.data.sources import Images, Source
from nncsl.data.tasks import Task
from nncsl.distributed import Ranks
from nncsl.errors import ConfigError, UserError
from nncsl.exchange import RankLostError
from nncsl.featurebank.errors import BankError
from nncsl.methods.base import Method, unit_projections
from nncsl.planner import duration
from nncsl.record import checkpoint, opening
from nncsl.record import folder as run_folder
from nncsl.record import summary as summaries
from nncsl.record import tensorboard as events
from nncsl.record.journal import open_journal
from nncsl.record.state import RunState
from nncsl.steps import threads
from nncsl.terminal import Interrupted, Reporter

MEMORY_PARTS = ("student", "gradients", "optimizer", "activations", "teacher", "bank", "data", "memory")  # of every run


class RunInterrupted(UserError):
    """The run stopped on request, with everything saved."""


def start(
    config: Config,
    folder: Path | None,
    *,
    quiet: bool = False,
    report: bool = False,
    tensorboard: bool = False,
    command: str | None = None,
    again: bool = False,
) -> dict[str, Any]:
    """Trains from the beginning in ``folder`` (default: a new one below runs/); returns the summary.

    report: also write report.html at the end; tensorboard: also event files; command: what was typed, to be kept;
    again: go on with the run in ``folder`` if it has begun.
    """
    if tensorboard:
        events.check_installed()
    ranks = distributed.connect()
    if again and ranks.first(lambda: folder is not None and (folder / "checkpoint" / "state.pt").exists()):
        assert folder is not None
        return resume(folder, [], quiet=quiet, report=report, tensorboard=tensorboard)
    config = run_folder.with_absolute_paths(methods.settled(config))
    device = find_device(config.device)
    if ranks.writes:
        print(f"reading {config.dataset} ...", flush=True)
    source, tasks = ranks.in_turn(lambda: open_data(config))

    def begin() -> tuple[Config, Path, int]:
        new = run_folder.new_folder(folder, config)
        try:
            planned, base = planner.within_budget(config, source, tasks, new, device, ranks.count)
        except UserError:
            if not any(new.iterdir()):
                new.rmdir()  # a refused run leaves nothing
            raise
        if tensorboard:
            (new / events.FOLDER).mkdir(exist_ok=True)
        files.write_text(new / "config.yaml", configs.dump(planned))
        files.write_text(new / "tasks.json", run_folder.describe_tasks(source, tasks))
        if command:
            files.write_text(new / "command.txt", command + "\n")
        return planned, new, base

    config, folder, base = ranks.first(begin)
    return _train(config, source, tasks, folder, device, ranks, base, resumed=False, quiet=quiet, report=report)


def resume(
    folder: Path,
    overrides: list[dict[str, Any]],
    *,
    quiet: bool = False,
    report: bool = False,
    tensorboard: bool = False,
) -> dict[str, Any]:
    """Continues the run in ``folder``. Where data lies and what computes may be said anew; other settings stay.

    ``tensorboard`` gives a run event files that was started without, from its first epoch on, even if it is complete.
    """
    ranks = distributed.connect()

    def find() -> tuple[dict[str, Any], Config, dict[str, Any] | None]:
        started = build.plain(run_folder.read_config(folder))
        wanted = started
        for override in overrides:
            wanted = build.merge(wanted, configs.renamed(override))
        config = run_folder.with_absolute_paths(build.typed(Config, wanted))
        run_folder.refuse_changes(folder, started, config)
        if tensorboard or (folder / events.FOLDER).is_dir():
            events.check_installed()
        if tensorboard:
            (folder / events.FOLDER).mkdir(exist_ok=True)
        if (folder / "summary.json").exists():
            return started, config, _complete(folder, config, report=report, tensorboard=tensorboard)
        _saved(folder, config)
        return started, config, None

    started, config, complete = ranks.first(find)
    if complete is not None:
        return complete
    device = find_device(config.device)
    if ranks.writes:
        print(f"reading {config.dataset} for {folder} (resumed) ...", flush=True)
    source, tasks = ranks.in_turn(lambda: open_data(config))

    def begin() -> tuple[Config, int]:
        if (folder / "tasks.json").read_text() != run_folder.describe_tasks(source, tasks):
            raise ConfigError(
                f"{folder / 'tasks.json'} records other tasks than {config.dataset} gives now: has its data changed?"
            )
        if not config.memory_budget:
            return config, 0
        if config.memory_budget == started["memory_budget"] and planner.planned_for(folder) == device.type:
            return config, planner.baseline(config, device, folder, source.nbytes)
        unplanned = planner.unplanned(config, overrides)
        planned, base = planner.within_budget(unplanned, source, tasks, folder, device, ranks.count)
        planned = replace(planned, bank_codec=config.bank_codec)  # that of the bank that is there
        files.write_text(folder / "config.yaml", configs.dump(planned))
        return planned, base

    config, base = ranks.first(begin)
    return _train(config, source, tasks, folder, device, ranks, base, resumed=True, quiet=quiet, report=report)


def _complete(folder: Path, config: Config, *, report: bool, tensorboard: bool) -> dict[str, Any]:
    """Say that a run is complete, give it what else is asked for, and return its summary."""
    print(f"{folder} is complete")
    if tensorboard:
        open_journal(folder).rewind(config.tasks, 0)
    if report and not (folder / "report.html").exists():
        write_report(folder)
    return json.loads((folder / "summary.json").read_text())


def find_device(name: str) -> torch.device:
    """auto, cpu, cuda or cuda:N; CUDA then computes with deterministic algorithms, as resumed runs need them."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device={name!r}: expected auto, cpu or cuda") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device={name!r}: expected auto, cpu or cuda")
    if device.type == "cuda" and device.index is None and int(os.environ.get("LOCAL_WORLD_SIZE", 1)) > 1:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))  # a GPU for each rank
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device={str(device)!r}: {torch.cuda.device_count()} CUDA devices were found; use --device cpu or auto, "
            "and at most one rank a device"
        )
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    return device


def _train(
    config: Config,
    source: Source,
    tasks: tuple[Task, ...],
    folder: Path,
    device: torch.device,
    ranks: Ranks,
    base: int,
    *,
    resumed: bool,
    quiet: bool,
    report: bool,
) -> dict[str, Any]:
    ranks = ranks.training(device, exact=config.ranks_exact, seconds=config.ranks_timeout)
    method = methods.build(config, source.num_classes)  # to be looked at: the engine makes its own
    reporter = Reporter(len(tasks), quiet=quiet, silent=not ranks.writes)
    with reporter, threads.chosen(method.network, config, device):
        run = engine.Run(config, source, tasks, ranks.folder(folder), device, reporter, ranks)
        where = f"{device}, in {folder}" if ranks.alone else f"{device.type}, {ranks.count} ranks, in {folder}"
        reporter.say(f"{config.method} on {source.name}, {where}" + (" (resumed)" if resumed else ""))
        for line in opening.lines(config, source, tasks, method, device):
            reporter.say(line)
        del method
        reporter.expect(duration.Outlook(config, duration.of_run(config, tasks, len(source.test))))
        try:
            # What was saved has no name here: its tensors are to go as soon as the run has taken them.
            _, state = engine.train(run, ranks.first(lambda: _saved(folder, config)) if resumed else None)
            totals = ranks.everyone(accounting.process_peak(device))
            ranks.close()
        except Interrupted as error:
            ranks.close()
            raise RunInterrupted(f"interrupted; continue with: nncsl train --resume {folder}") from error
        except RankLostError as error:
            raise RankLostError(f"{error}. What was saved is intact: nncsl train --resume {folder}") from error
        except (BankError, OSError, ImportError) as error:  # a damaged bank, a full disk, no FAISS: said in one line
            raise UserError(f"{error}. What was saved is intact: nncsl train --resume {folder}") from error
        if config.memory_budget:
            # Of this process alone: the run may have begun in another one, with another budget.
            own = max(totals) - base
            state.peak_memory |= {"baseline": base, "budget": parse_bytes(config.memory_budget), "budget_used": own}
        state.peak(total=max(totals))
        summary = summaries.summarize(state, config)
        if not ranks.alone:
            summary["ranks"] = {
                "count": ranks.count,
                "exact": ranks.exact,
                **ranks.traffic.per_step(),
                "peak_memory": totals,
            }
        if not ranks.writes:
            return summary
        files.write_text(folder / "summary.json", json.dumps(summary, indent=2) + "\n")
        reporter.table(f"results, in {folder}", summaries.results(summary))
    if report:
        print("drawing the report ...", flush=True)
        write_report(folder, (source, tasks))
    return summary


def write_report(folder: Path, opened: tuple[Source, tuple[Task, ...]] | None = None) -> None:
    """DIR/report.html; whatever goes wrong with it costs a line, not the run."""
    from nncsl import report

    try:
        print(f"report: {report.write([folder], opened=opened)}")
    except Exception as error:
        print(f"no report ({type(error).__name__}: {error}); the run is complete: try nncsl report {folder}")


def _saved(folder: Path, config: Config) -> dict[str, Any]:
    """The checkpoint; one of another configuration is refused."""
    saved = checkpoint.load(folder / "checkpoint" / "state.pt")
    if saved["format"] != checkpoint.FORMAT:
        raise ConfigError(f"{folder} was begun by an older nncsl: continue it with that one, or start a new run")
    run_folder.refuse_changes(folder / "checkpoint", build.plain(configs.recorded(saved["config"])), config)
    return saved


class Trained(NamedTuple):
    """A run as its last checkpoint has it, and the data it was trained on."""

    config: Config
    state: RunState
    source: Source
    tasks: tuple[Task, ...]
    method: Method
    device: torch.device


def reopen(folder: Path) -> Trained:
    """Return the method and state of the run in ``folder``."""
    config = run_folder.read_config(folder)
    saved = checkpoint.load(folder / "checkpoint" / "state.pt")
    source, tasks = open_data(config)
    device = find_device(config.device)
    state = RunState.unpack(saved["state"])
    method = methods.build(config, source.num_classes).to(device)
    methods.restore(method, saved, tasks, state)
    return Trained(config, state, source, tasks, method, device)


def evaluate(folder: Path) -> dict[str, Any]:
    """Return accuracies of a run's last checkpoint: by its method, and by soft nearest neighbours among the memory."""
    config, state, source, tasks, method, device = reopen(folder)
    trained = state.trained(len(tasks))
    if not trained:
        raise UserError(f"{folder} has not been trained yet: there is nothing to evaluate")
    shown, seen = tasks[:trained], torch.from_numpy(tasks[trained - 1].seen_mask)
    scores, labels = evaluation.test_scores(method, source, config.views, device)
    result: dict[str, Any] = {"tasks": trained, "linear": evaluation.accuracy_by_task(scores, labels, shown, seen)}
    ids = np.unique(np.concatenate([state.memory.ids, *(task.labeled for task in tasks[state.task : trained])]))
    if len(ids):

        def projections(images: Images, ids: np.ndarray) -> Tensor:
            return evaluation.answers(method, images, ids, config.views, device, unit_projections)

        supports, queries = projections(source.train, ids), projections(source.test, np.arange(len(source.test)))
        known = torch.from_numpy(source.train_labels[ids])
        probabilities = kernels.snn(queries, supports, known, num_classes=source.num_classes, temperature=config.tau)
        result["nearest_neighbours"] = evaluation.accuracy_by_task(probabilities, labels, shown, seen)
    classes = len(tasks[trained - 1].seen)
    means = {way: sum(found) / trained for way, found in result.items() if way != "tasks"}
    return result | {"mean": means, "classes": classes, "chance": opening.chance(classes)}
