"""Options of LoRA adapters: plain data, no torch."""

from dataclasses import dataclass

from baton.settings.values import OptionError

DTYPES = ("auto", "bfloat16", "float16", "float32")


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """Limits of an engine's adapters."""

    enabled: bool = False
    max_loras: int = 8  # adapters in one batch, and in a GPU's memory
    max_rank: int = 16
    max_cpu_loras: int = 32  # adapters in host memory
    dtype: str = "auto"  # of the matrices; auto: the activations'

    def check(self) -> None:
        """Raise OptionError if the limits contradict each other."""
        if self.max_cpu_loras < self.max_loras:
            raise OptionError(
                f"max_cpu_loras is {self.max_cpu_loras}, but must be at least max_loras ({self.max_loras})"
            )
