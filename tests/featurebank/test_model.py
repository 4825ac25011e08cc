"""Random sequences of operations against a dict, for every codec and residency."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nncsl.featurebank import FeatureBank
from tests.featurebank.support import EXACT_CODECS, error_bound

DIM = 6
# Small and dense, sparse, and at the ends of int64: each takes another way through the key index.
IDS = st.one_of(st.integers(0, 12), st.integers(-(2**40), 2**40), st.sampled_from([-(2**63), 2**63 - 1, 2**62, -1]))
SLOTS = st.one_of(st.integers(0, 3), st.sampled_from([77, 2**31 - 1]))
KEYS = st.lists(st.tuples(IDS, SLOTS), min_size=0, max_size=12)
ROLES = st.sampled_from(["unlabeled", "support", "replay"])
SCALES = st.sampled_from([1e-9, 1e-4, 1.0, 300.0])


class BankMachine(RuleBasedStateMachine):
    """`committed` maps generation -> key -> (feature, label, role); `pending` is what the next commit adds."""

    @initialize(codec=st.sampled_from(EXACT_CODECS), residency=st.sampled_from(["ram", "disk", "device"]))
    def create(self, codec, residency):
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "bank"
        self.codec, self.residency = codec, residency
        self.bank = FeatureBank.create(self.path, dim=DIM, codec=codec, residency=residency)
        self.committed = {self.bank.generation: {}}
        self.served = self.target = self.bank.generation
        self.pending = {}

    def known(self):
        return {**(self.committed.get(self.target, {})), **self.pending}

    @rule(keys=KEYS, role=ROLES, scale=SCALES, seed=st.integers(0, 2**32 - 1))
    def write(self, keys, role, scale, seed):
        ids, slots = np.array([k[0] for k in keys], np.int64), np.array([k[1] for k in keys], np.int64)
        features = scale * torch.randn(len(keys), DIM, generator=torch.Generator().manual_seed(seed))
        labels = np.arange(len(keys)) % 3 if seed % 2 else None
        fresh = len(set(keys)) == len(keys) and not self.known().keys() & set(keys)
        try:
            self.bank.write(ids, slots, features, labels, role)
        except ValueError as error:
            assert not fresh, error
            return
        assert fresh, "a key was written twice"
        for row, key in enumerate(keys):
            self.pending[key] = (features[row], -1 if labels is None else row % 3, role)

    @rule()
    def commit(self):
        self.bank.commit()
        if self.target not in self.committed:
            self.committed = {g: rows for g, rows in self.committed.items() if rows}
        self.committed.setdefault(self.target, {}).update(self.pending)
        self.served, self.pending = self.target, {}

    @rule()
    def roll_back(self):
        self.bank.rollback()
        self.target, self.pending = self.served, {}

    @precondition(lambda self: not self.pending and self.target == self.served)
    @rule()
    def begin_generation(self):
        self.target = self.bank.begin_generation("another")
        assert self.target > max(self.committed)

    @precondition(lambda self: not self.pending and self.target == self.served)
    @rule(role=ROLES)
    def evict_role(self, role):
        self.bank.evict(role=role)
        rows = self.committed[self.served]
        self.committed[self.served] = {key: row for key, row in rows.items() if row[2] != role}

    @precondition(lambda self: not self.pending and self.target == self.served and len(self.committed) > 1)
    @rule(data=st.data())
    def evict_generation(self, data):
        number = data.draw(st.sampled_from(sorted(set(self.committed) - {self.served})))
        self.bank.evict(generation=number)
        del self.committed[number]

    @rule(data=st.data())
    def reopen(self, data):
        self.bank.rollback()
        self.bank.close()
        self.served = self.target = data.draw(st.sampled_from(sorted(self.committed)))
        self.pending = {}
        self.bank = FeatureBank.open(self.path, "a", generation=self.served, residency=self.residency)

    @invariant()
    def holds_what_the_dict_holds(self):
        if not hasattr(self, "bank"):
            return
        rows = self.committed[self.served]
        assert len(self.bank) == len(rows)
        assert {g.generation for g in self.bank.generations} == set(self.committed)
        ids = [key[0] for key in rows] * 2
        slots = [key[1] for key in rows] * 2
        got = self.bank.read(ids, slots)
        expected = torch.stack([row[0] for row in rows.values()] * 2) if rows else torch.zeros(0, DIM)
        assert ((got - expected).abs() <= error_bound(self.codec, expected)).all()
        assert self.bank.labels(ids, slots).tolist() == [row[1] for row in rows.values()] * 2
        unknown = [key for key in {*self.pending, (5, 5), (-3, 0), (2**63 - 1, 0), (-(2**63), 1)} if key not in rows]
        assert not self.bank.contains([key[0] for key in unknown], [key[1] for key in unknown]).any()

    def teardown(self):
        if hasattr(self, "bank"):
            self.bank.rollback()
            self.bank.verify()
            self.bank.close()
            self.folder.cleanup()


TestBankAgainstDict = BankMachine.TestCase
TestBankAgainstDict.settings = settings(
    max_examples=60, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
