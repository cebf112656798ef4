"""What can be wrong before a load runs.

LoadToolError
    DatasetError    a file is missing, or is not what it is said to be
    SettingError    options that cannot be, or do not go together
    TargetError     the server cannot be reached, or refuses what the load would ask
"""


class LoadToolError(Exception):
    """The load cannot be run; the text says what would be right."""


class DatasetError(LoadToolError):
    """A dataset cannot be read."""


class SettingError(LoadToolError):
    """Settings are impossible, or contradict each other."""


class TargetError(LoadToolError):
    """The server cannot be loaded."""
