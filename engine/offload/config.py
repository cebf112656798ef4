"""Options of weights offload: plain data, no torch."""

from dataclasses import dataclass

from baton.settings.values import OptionError

KINDS = ("none", "host", "disk")


@dataclass(frozen=True, slots=True)
class OffloadConfig:
    """Where the layers' weights are between steps, and how much memory they may take in a step."""

    kind: str = "none"  # one of KINDS
    directory: str | None = None  # of files with weights; None: in the user's cache
    memory_bytes: int | None = None  # for all of the model's weights; None: no limit
    expert_bytes: int | None = None  # the part of `memory_bytes` for experts; None: what the other weights leave

    def check(self) -> None:
        """Raise OptionError for options that mean nothing together."""
        if self.kind == "none":
            given = {
                "weights_offload_dir": self.directory,
                "weights_memory_bytes": self.memory_bytes,
                "expert_cache_bytes": self.expert_bytes,
            }
            for name, value in given.items():
                if value is not None:
                    raise OptionError(f"{name} needs weights_offload host or disk; set it, or leave {name} out")
        if self.kind == "host" and (self.directory is not None or self.expert_bytes is not None):
            raise OptionError("weights_offload_dir and expert_cache_bytes are for weights_offload disk; leave them out")

    @property
    def enabled(self) -> bool:
        """Whether weights are offloaded."""
        return self.kind != "none"
