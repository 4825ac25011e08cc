"""Errors that are the user's to solve: the command line prints them as one line, without a traceback."""


class UserError(Exception):
    """Something outside the program is not as it has to be; the message names it and says what to do."""

    exit_code = 2


class ConfigError(UserError, ValueError):
    """A setting is unknown, of the wrong type or impossible together with the others."""


class DataError(UserError):
    """A data file or folder is missing, corrupt or not usable."""


class DamagedError(UserError):
    """A file that was written whole is not any more; scripts can tell this from a mistyped path."""

    exit_code = 3
