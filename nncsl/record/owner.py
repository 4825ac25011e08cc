"""One owner of a run's folder: whoever trains in it holds RUN/LOCK, which a killed process lets go of by itself."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from nncsl import files
from nncsl.errors import UserError
from nncsl.featurebank.lock import HeldError, lock
from nncsl.record import checksums

LOCK = "LOCK"
FOLDERS = ("checkpoint", "memory", "snapshots", "bank", "inputs", "tensorboard")
P = ParamSpec("P")
T = TypeVar("T")


class OwnedError(UserError):
    """Another process trains in the folder; the message names it."""


class Owner:
    """This process, as far as it owns a folder. Ranks leave that to the first of them."""

    def __init__(self) -> None:
        self._held = ExitStack()

    def take(self, folder: Path) -> None:
        """Become the one who writes in ``folder``, clean up after owners that were killed, and begin its checksums."""
        try:
            held = lock(folder / LOCK)
        except HeldError as holder:
            raise OwnedError(
                f"{folder} is in use by {holder}. A run has one owner at a time: wait for it or stop it, or train in "
                "another folder"
            ) from None
        except OSError as error:
            raise UserError(f"{folder} can't be trained in: {error.strerror}; choose another folder") from error
        self._held.callback(held.release)
        for name in FOLDERS:
            if (folder / name).is_symlink():
                raise UserError(f"{folder / name} is a link, expected a folder of the run's own: remove it")
            files.remove_leftovers(folder / name)
        files.remove_leftovers(folder)
        checksums.begin(folder)

    def leave(self) -> None:
        """Let go of what was taken."""
        self._held.close()

    def leave_nothing(self, folder: Path) -> None:
        """Let go of a folder, and remove it if a run that was refused has put nothing into it."""
        self.leave()
        (folder / checksums.NAME).unlink(missing_ok=True)
        if not any(folder.iterdir()):
            folder.rmdir()


def owning(work: Callable[Concatenate[Owner, P], T]) -> Callable[P, T]:
    """Give ``work`` an owner, who lets go of what it has taken when the work ends."""

    @wraps(work)
    def owned(*arguments: P.args, **options: P.kwargs) -> T:
        owner = Owner()
        try:
            return work(owner, *arguments, **options)
        finally:
            owner.leave()

    return owned
