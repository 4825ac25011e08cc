"""Where a bank lies, and the run that it belongs to."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nncsl.config import Config
from nncsl.errors import DamagedError, UserError
from nncsl.featurebank import BankError, CorruptBank, FeatureBank
from nncsl.featurebank.manifest import CURRENT
from nncsl.record import folder as run_folder


@dataclass(frozen=True)
class Place:
    """bank: the bank's directory; run: the folder of the run it belongs to, None where that is not known."""

    bank: Path
    run: Path | None

    def config(self) -> Config:
        """The run's configuration; a UserError where there is no run."""
        if self.run is None:
            raise UserError(
                f"{self.bank} lies in no run's folder, so its images are not known: "
                f"name the run with --run DIR, or leave the pictures out with --no-image"
            )
        return run_folder.read_config(self.run)


def find(path: Path, run: Path | None = None) -> Place:
    """The bank in ``path``, which is its directory or a run's folder; ``run`` where it lies elsewhere."""
    if run is not None and not _is_run(run):
        raise UserError(f"--run {run} is not a run: config.yaml is not in it")
    if (path / CURRENT).exists():
        return Place(path, run or (path.absolute().parent if _is_run(path.absolute().parent) else None))
    if (path / "bank" / CURRENT).exists():
        return Place(path / "bank", run or (path if _is_run(path) else None))
    if _is_run(path):
        mode = run_folder.read_config(path).teacher_mode
        raise UserError(
            f"{path} has no bank: one is written when its second task begins, by a method that distills, "
            f"with --teacher-mode features (this run's is {mode!r})"
        )
    what = "holds no bank" if path.is_dir() else "is not a folder"
    raise UserError(f"{path} {what}: expected a bank's directory (with a file {CURRENT}), or a run's folder")


@contextmanager
def opened(place: Place, generation: int | None = None, *, verify: bool = True) -> Iterator[FeatureBank]:
    """The bank for reading, its features left on disk; what is wrong with it becomes a UserError of one kind."""
    try:
        with FeatureBank.open(place.bank, generation=generation, residency="disk", verify=verify) as bank:
            yield bank
    except CorruptBank as error:
        more = "" if verify else f"; nncsl bank verify {place.bank} looks at every file"
        raise DamagedError("; ".join(str(error).splitlines()) + more) from error
    except (BankError, OSError) as error:
        raise UserError(str(error)) from error


def _is_run(folder: Path) -> bool:
    return (folder / "config.yaml").is_file()
