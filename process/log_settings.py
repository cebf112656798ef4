"""How a process logs: the lowest level and the format of its lines."""

from dataclasses import dataclass
from typing import Literal, get_args

LogLevel = Literal["debug", "info", "warning", "error"]
LOG_LEVELS: tuple[str, ...] = get_args(LogLevel)
LogFormat = Literal["text", "json"]
LOG_FORMATS: tuple[str, ...] = get_args(LogFormat)
LEVEL_HELP = "Lowest level that is logged."
FORMAT_HELP = "Format of log lines: text, or json for one JSON object per line."


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Log settings of a process; values of `LOG_LEVELS` and `LOG_FORMATS`."""

    level: str = "info"
    format: str = "text"

    @property
    def flags(self) -> list[str]:
        """The flags of a process with these settings."""
        return [f"--log-level={self.level}", f"--log-format={self.format}"]


DEFAULT_LOG = LogSettings()
