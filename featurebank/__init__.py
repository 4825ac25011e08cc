"""Feature bank: vectors under (id, slot) keys, durable on disk and quick to gather. See docs/featurebank.md."""

from featurebank.bank import FeatureBank
from featurebank.errors import BankError, BankLocked, BankMismatch, BankTooNew, CorruptBank
from featurebank.fingerprint import fingerprint

__all__ = ["BankError", "BankLocked", "BankMismatch", "BankTooNew", "CorruptBank", "FeatureBank", "fingerprint"]
