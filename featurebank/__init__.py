"""Feature bank: vectors under (id, slot) keys, durable on disk and quick to gather. See docs/featurebank.md."""

from .bank import FeatureBank
from .errors import BankError, BankLocked, BankMismatch, BankTooNew, CorruptBank
from .fingerprint import fingerprint
from .herding import herd

__all__ = ["BankError", "BankLocked", "BankMismatch", "BankTooNew", "CorruptBank", "FeatureBank", "fingerprint", "herd"]
