"""What can be wrong with a bank on disk. Wrong arguments are ordinary ValueErrors and KeyErrors."""


class BankError(RuntimeError):
    """Base of everything below."""


class CorruptBank(BankError):
    """A file of the bank is damaged or missing; the message names it and says what to do."""


class BankMismatch(BankError, ValueError):
    """The bank holds the features of another teacher, view policy, data set or dimension than expected."""


class BankLocked(BankError):
    """Another writer is at work; the message names it."""


class BankTooNew(BankError):
    """The bank was written in a later format than this program reads."""
