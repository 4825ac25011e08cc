"""A history of commits, generations and evictions whose outcome is known after every step.

The crash campaign plays it, interrupts it in every way it can think of, and compares what is left with what must be.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from nncsl.featurebank import BankError, FeatureBank

DIM, BATCH, CHUNKS = 16, 96, 3
# What a bank holds: for every generation (by teacher) the step in which each batch of a role was written.
Content = dict[str, dict[str, tuple[int, ...]]]


class Broken(AssertionError):
    """The bank did not keep a promise."""


def content_after(steps: int) -> Content:
    """What the bank must hold once `steps` steps are done. Step 0 creates it."""
    content: Content = {}
    for step in range(steps):
        kind = step % 10
        if kind == 0:
            content = {f"teacher-{step}": {}, **content}
        elif kind == 2:
            content = {teacher: content[teacher] for teacher in list(content)[:1]}
        elif kind == 6:
            content[next(iter(content))].pop("support", None)
        else:
            newest = content[next(iter(content))]
            for role in ("unlabeled", "support"):
                newest[role] = (*newest.get(role, ()), step)
    return content


def rows_of(step: int, role: str) -> tuple[Tensor, Tensor, Tensor]:
    """(ids, slots, features) of one batch: exact in fp32, different for every step, role and entry."""
    ids = torch.arange(BATCH) + step * BATCH
    slots = torch.full((BATCH,), ("unlabeled", "support").index(role))
    features = ids[:, None] * 64.0 + slots[:, None] * 32 + torch.arange(DIM)
    return ids, slots, features


def play(bank: FeatureBank, step: int) -> None:
    kind = step % 10
    if kind == 0:
        bank.begin_generation(f"teacher-{step}")
        bank.commit()
    elif kind == 2:
        for generation in bank.generations[1:]:
            bank.evict(generation=generation.generation)
    elif kind == 6:
        bank.evict(role="support")
    else:
        for role in ("unlabeled", "support"):
            chunks = (column.chunk(CHUNKS) for column in rows_of(step, role))
            for ids, slots, features in zip(*chunks, strict=True):
                bank.write(ids, slots, features, role=role)
        bank.commit()


def start(path: Path, bank: type[FeatureBank] = FeatureBank) -> FeatureBank:
    return bank.create(path, dim=DIM, codec="fp32", teacher="teacher-0")


def holds(path: Path, content: Content) -> bool:
    """Whether the bank, opened as a reader would, is exactly `content`."""
    with FeatureBank.open(path, residency="disk") as bank:
        generations = bank.generations
    # An empty generation is dropped when the next one begins, so only those with rows count, and the current one.
    expected = {t: roles for n, (t, roles) in enumerate(content.items()) if n == 0 or roles}
    if [g.teacher for g in generations] != list(expected):
        return False
    for generation, roles in zip(generations, expected.values(), strict=True):
        with FeatureBank.open(path, generation=generation.generation, verify=False) as bank:
            batches = [(step, role) for role, steps in roles.items() for step in steps]
            if len(bank) != BATCH * len(batches):
                return False
            for step, role in batches:
                ids, slots, features = rows_of(step, role)
                if not bank.contains(ids, slots).all() or not torch.equal(bank.read(ids, slots), features):
                    return False
    return True


def steps_held(path: Path, acknowledged: int, begun: int) -> int:
    """How many steps the bank holds: all acknowledged ones, possibly the one under way, nothing else; or Broken."""
    if acknowledged == 0 and not (path / "CURRENT").exists():
        return 0
    for steps in (begun, acknowledged):
        try:
            if holds(path, content_after(steps)):
                return steps
        except (BankError, OSError) as error:
            raise Broken(f"{path}: after {acknowledged} steps the bank can't be read: {error}") from error
    raise Broken(f"{path}: holds neither {acknowledged} nor {begun} steps")


def writer_finds_clean_directory(path: Path) -> None:
    """Opening to write removes what the accident left, and nothing else."""
    with FeatureBank.open(path, "a") as bank:
        expected = {"CURRENT", "LOCK", *(g.file for g in bank.generations)}
        expected |= {shard.file for g in bank.generations for shard in g.shards}
        if (found := {p.name for p in path.rglob("*") if p.is_file()}) != expected:
            raise Broken(f"{path}: leftovers {sorted(found - expected)}, missing {sorted(expected - found)}")
