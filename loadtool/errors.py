"""Errors that prevent a load from running.

LoadToolError
    DatasetError    a file is missing or invalid
    SettingError    options are invalid, or conflict
    TargetError     the server cannot be reached, or rejects the load's requests
"""


class LoadToolError(Exception):
    """The load cannot run; the text has the remedy."""


class DatasetError(LoadToolError):
    """The dataset cannot be read."""


class SettingError(LoadToolError):
    """Settings are invalid, or conflict."""


class TargetError(LoadToolError):
    """The server cannot be reached, or rejects the load's requests."""
