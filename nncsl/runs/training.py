"""Starting a run, resuming it, and what is said of it in the end."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nncsl import accounting, distributed, engine, files, methods, planner
from nncsl import config as configs
from nncsl.config import Config, build, parse_bytes
from nncsl.data.catalog import open_data
from nncsl.data.sources import Source
from nncsl.data.tasks import Task
from nncsl.distributed import Ranks
from nncsl.errors import ConfigError, UserError
from nncsl.exchange import RankLostError
from nncsl.featurebank.errors import BankError
from nncsl.interruption import Interrupted, stop_was_requested
from nncsl.planner import duration, estimates, keeping
from nncsl.record import checkpoint, checksums, earlier, introduction
from nncsl.record import folder as run_folder
from nncsl.record import summary as summaries
from nncsl.record import tensorboard as events
from nncsl.record.journal import open_journal
from nncsl.record.owner import Owner, owning
from nncsl.record.remarks import remarks
from nncsl.runs.opening import find_device
from nncsl.steps import threads
from nncsl.terminal import Reporter

MEMORY_PARTS = ("student", "gradients", "optimizer", "activations", "teacher", "bank", "data", "memory")  # of every run


class RunInterrupted(UserError):
    """The run stopped on request, with everything saved."""


@owning
def start(
    owner: Owner,
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
    estimates.check_network(config)
    if ranks.writes:
        print(f"reading {config.dataset} ...", flush=True)
    source, tasks = ranks.in_turn(lambda: open_data(config))
    methods.check_labels(config, tasks)
    config = methods.with_outputs(config, source.num_classes)

    def begin() -> tuple[Config, Path, int]:
        estimates.check_bank(config, source.num_classes, tasks, folder or Path())
        new = run_folder.new_folder(folder, config)
        owner.take(new)
        run_folder.new_folder(new, config)  # again, now that nobody else can train in it
        try:
            planned = keeping.within_keep(config, source, tasks)
            planned, base = planner.within_budget(planned, source, tasks, new, device, ranks.count)
        except UserError:
            owner.leave_nothing(new)
            raise
        if tensorboard:
            files.make_folder(new / events.FOLDER)
        checksums.write_text(new, "config.yaml", configs.dump(planned))
        checksums.write_text(new, "tasks.json", json.dumps(run_folder.describe_tasks(source, tasks)) + "\n")
        if command:
            checksums.write_text(new, "command.txt", command + "\n")
        return planned, new, base

    config, folder, base = ranks.first(begin)
    return _train(config, source, tasks, folder, device, ranks, base, resumed=False, quiet=quiet, report=report)


@owning
def resume(
    owner: Owner,
    folder: Path,
    overrides: list[dict[str, Any]],
    *,
    quiet: bool = False,
    report: bool = False,
    tensorboard: bool = False,
    previous: bool = False,
) -> dict[str, Any]:
    """Continues the run in ``folder``. Where data lies and what computes may be said anew; other settings stay.

    ``tensorboard`` gives a run event files that was started without, from its first epoch on, even if it is complete.
    ``previous``: go on from the checkpoint before the last one, which may be damaged.
    """
    ranks = distributed.connect()

    def find() -> tuple[dict[str, Any], Config, dict[str, Any] | None]:
        read = run_folder.read_config(folder)
        complete = (folder / "summary.json").exists() and not previous
        if not complete or tensorboard:
            owner.take(folder)
        if previous:
            checkpoint.fall_back(folder)
        started = build.plain(read)
        wanted = started
        for override in overrides:
            wanted = build.merge(wanted, configs.renamed(override))
        config = run_folder.with_absolute_paths(build.typed(Config, wanted))
        run_folder.refuse_changes(folder, started, config)
        if tensorboard or (folder / events.FOLDER).is_dir():
            events.check_installed()
        if tensorboard:
            files.make_folder(folder / events.FOLDER)
        if complete:
            return started, config, _complete(folder, config, report=report, tensorboard=tensorboard)
        _saved(folder, config)
        return started, config, None

    started, config, complete = ranks.first(find)
    if complete is not None:
        return complete
    device = find_device(config.device)
    if ranks.writes:
        print(f"reading {config.dataset} for {folder} (resumed) ...", flush=True)
    before = ranks.first(lambda: earlier.read(folder))
    source, tasks = ranks.in_turn(lambda: earlier.open_run(folder, config, before))

    def begin() -> tuple[Config, int]:
        recorded = run_folder.read_tasks(folder)
        described = run_folder.describe_tasks(source, tasks, before.tasks if before else ())
        if any(described.get(key) != value for key, value in recorded.items()):
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
        checksums.write_text(folder, "config.yaml", configs.dump(planned))
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
    return run_folder.read_json(folder, "summary.json")


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
        for line in introduction.lines(config, source, tasks, method, device):
            reporter.say(line)
        del method
        sizes, labeled = [len(task.classes) for task in tasks], [len(task.labeled) for task in tasks]
        for remark in remarks(config.method, config.memory, sizes, labeled, source.left_out):
            reporter.say(f"  note: {remark}")
        reporter.expect(duration.Outlook(config, duration.of_run(config, tasks, len(source.test))))
        try:
            # What was saved has no name here: its tensors are to go as soon as the run has taken them.
            _, state = engine.train(run, ranks.first(lambda: _saved(folder, config)) if resumed else None)
            totals = ranks.everyone(accounting.process_peak(device))
            ranks.close()
        except Interrupted as error:
            with suppress(RankLostError):
                ranks.close()
            raise _interrupted(folder) from error
        except RankLostError as error:
            if stop_was_requested():  # of all ranks, and the others have ended first
                raise _interrupted(folder) from error
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
        checksums.write_text(folder, "summary.json", json.dumps(summary, indent=2) + "\n")
        classifies = methods.find(config.method).classifies
        reporter.table(f"results, in {folder}", summaries.results(summary, classifies=classifies))
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
    with checkpoint.understood(folder / "checkpoint" / "state.pt"):
        started = build.plain(configs.recorded(saved["config"]))
    run_folder.refuse_changes(folder / "checkpoint", started, config)
    return saved


def _interrupted(folder: Path) -> RunInterrupted:
    return RunInterrupted(f"interrupted; continue with: nncsl train --resume {folder}")
