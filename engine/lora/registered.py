"""Adapters that an engine has read and registered."""

from dataclasses import dataclass
from pathlib import Path

from baton.engine.errors import UnknownAdapter
from baton.engine.lora.info import AdapterInfo
from baton.settings.values import shown


@dataclass(frozen=True, slots=True)
class ReadAdapter:
    """An adapter whose matrices are in memory, under a number that no request uses yet."""

    number: int  # of the matrices
    info: AdapterInfo
    path: Path
    read_s: float  # time that it took


@dataclass(frozen=True, slots=True)
class RegisteredAdapter:
    """An adapter that requests may name. Its matrices may leave memory, and are read again from its directory."""

    number: int
    info: AdapterInfo
    path: Path

    def check_unchanged(self, read: ReadAdapter) -> None:
        """Raise UnknownAdapter unless the files still have the registered contents."""
        if read.info.digest != self.info.digest:
            raise UnknownAdapter(
                f"the files of the LoRA adapter {shown(self.info.name)} in {self.path} have changed since it was "
                f"loaded (digest {read.info.digest}, not {self.info.digest}): unload it, and load the new ones"
            )

    def unreadable(self, error: Exception) -> UnknownAdapter:
        """Return the error of requests for an adapter that cannot be read again."""
        return UnknownAdapter(
            f"the LoRA adapter {shown(self.info.name)} has left memory, and cannot be read again: {error}"
        )
