"""The ledger: what a run keeps between its tasks and beside its student, in bytes; one rule for every method.

Counted are the remembered images as they are stored, what the teacher answers from, and whatever a checkpoint has of
the method besides ``network``. Not counted is what a run computes with meanwhile (gradients, momentum, activations, the
images of the task itself) and what it only reports (journal, snapshots).
"""

from collections.abc import Iterable, Mapping

import numpy as np

from nncsl.accounting import image_bytes, state_bytes
from nncsl.data.images import Images
from nncsl.methods.base import Method
from nncsl.replay import Memory
from nncsl.teachers import Teacher

TOTAL = "total"
Parts = dict[str, int]


def kept(images: Images, memory: Memory, method: Method, teacher: Teacher) -> Parts:
    """Return the bytes that are kept now, by part; an image that is remembered twice counts once.

    memory, unlabeled_memory: pixels of the replay memory; labels: its ids and labels; teacher, bank: the old network's
    weights, its answers; own.images: pixels that the method remembers besides; own.NAME: its buffer or module of that
    name.
    """
    remembered = np.union1d(memory.ids, memory.unlabeled)
    parts = {
        "memory": image_bytes(images, memory.ids),
        "unlabeled_memory": image_bytes(images, np.setdiff1d(memory.unlabeled, memory.ids)),
        "labels": label_bytes(memory),
        **teacher.kept(),
        "own.images": image_bytes(images, np.setdiff1d(method.keeps(), remembered)),
        **own_state(method),
    }
    return {name: size for name, size in parts.items() if size}


def label_bytes(memory: Memory) -> int:
    """Return the bytes of the numbers that a memory's images have: ids and labels."""
    return memory.ids.nbytes + memory.labels.nbytes + memory.unlabeled.nbytes


def own_state(method: Method) -> Parts:
    """Return the bytes of what a checkpoint has of the method, by buffer and module, besides ``network``."""
    names = {name.partition(".")[0] for name in method.state_dict()} - {"network"}
    return {f"own.{name}": state_bytes(getattr(method, name)) for name in sorted(names)}


def total(parts: Mapping[str, int]) -> int:
    """Return the sum over all parts."""
    return sum(size for name, size in parts.items() if name != TOTAL)


def with_total(parts: Mapping[str, int]) -> Parts:
    """Return the parts as they are recorded: with their sum."""
    return {**parts, TOTAL: total(parts)}


def fullest(tasks: Iterable[Mapping[str, int]]) -> Parts:
    """Return the parts of the task in which most was kept, with their sum."""
    return with_total(max(tasks, key=total, default={}))


def line(parts: Mapping[str, int]) -> str:
    """Return the parts in one line, the largest first."""
    shown = sorted(((size, name) for name, size in parts.items() if name != TOTAL), reverse=True)
    each = ", ".join(f"{name} {size / 1e6:.3g}" for size, name in shown)
    return f"{total(parts) / 1e6:.3g} MB" + (f" ({each})" if shown else "")
