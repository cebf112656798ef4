"""Stages of the check, in order."""

from dataclasses import dataclass
from importlib import import_module

from benchmarks.gpu.stage import Record, Setting


@dataclass(frozen=True, slots=True)
class Stage:
    """A module with a `run` function, and its time limit on a GPU."""

    name: str
    module: str
    timeout_s: float
    is_benchmark: bool = False

    def run(self, setting: Setting, record: Record) -> None:
        """Run the stage in this process."""
        import_module(f"benchmarks.gpu.{self.module}").run(setting, record)


STAGES = (
    Stage("ops", "op_numerics", 60),
    Stage("attention", "attention_numerics", 120),
    Stage("models", "model_numerics", 120),
    Stage("graphs", "graph_numerics", 120),
    Stage("fp8", "fp8_numerics", 90),
    Stage("checksums", "checksum_numerics", 60),
    Stage("handover", "handover_numerics", 120),
    Stage("roofline", "roofline", 30, is_benchmark=True),
    Stage("decode speed", "decode_speed", 180, is_benchmark=True),
    Stage("prefill speed", "prefill_speed", 120, is_benchmark=True),
    Stage("handover speed", "handover_speed", 60, is_benchmark=True),
    Stage("transformers speed", "transformers_speed", 120, is_benchmark=True),
    Stage("vllm speed", "vllm_speed", 180, is_benchmark=True),
)


def stage_named(name: str) -> Stage:
    """Return the stage with this name. Raises ValueError if there is none."""
    for stage in STAGES:
        if stage.name == name:
            return stage
    raise ValueError(f"there is no stage {name!r}; there are {', '.join(stage.name for stage in STAGES)}")
