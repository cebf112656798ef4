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
    Stage("ops", "numerics.ops", 60),
    Stage("kv append", "numerics.kv_append", 90),
    Stage("expert pairs", "numerics.expert_pairs", 90),
    Stage("attention", "numerics.attention", 120),
    Stage("models", "numerics.models", 120),
    Stage("new families", "numerics.families", 120),
    Stage("mamba", "numerics.mamba", 200),
    Stage("sampling", "numerics.sampling", 60),
    Stage("embeddings", "numerics.embeddings", 60),
    Stage("graphs", "numerics.graphs", 120),
    Stage("speculation", "numerics.speculation", 240),
    Stage("lora", "numerics.lora", 120),
    Stage("fp8", "numerics.fp8", 120),
    Stage("packed", "numerics.packed", 60),
    Stage("images", "numerics.images", 60),
    Stage("offload", "numerics.offload", 150),
    Stage("kv stores", "numerics.kv_stores", 90),
    Stage("checksums", "numerics.checksums", 60),
    Stage("handover", "numerics.handover", 120),
    Stage("serve", "numerics.serve", 120),
    Stage("roofline", "speed.roofline", 30, is_benchmark=True),
    Stage("kv append speed", "speed.kv_append", 30, is_benchmark=True),
    Stage("decode speed", "speed.decode", 180, is_benchmark=True),
    Stage("fp8 speed", "speed.fp8", 180, is_benchmark=True),
    Stage("decode kernels", "speed.kernels", 60, is_benchmark=True),
    Stage("experts speed", "speed.experts", 120, is_benchmark=True),
    Stage("prefill speed", "speed.prefill", 120, is_benchmark=True),
    Stage("handover speed", "speed.handover", 60, is_benchmark=True),
    Stage("serve speed", "speed.serve", 240, is_benchmark=True),
    Stage("transformers speed", "speed.transformers_peer", 120, is_benchmark=True),
    Stage("vllm speed", "speed.vllm_peer", 180, is_benchmark=True),
)


def stage_named(name: str) -> Stage:
    """Return the stage with this name. Raises ValueError if there is none."""
    for stage in STAGES:
        if stage.name == name:
            return stage
    raise ValueError(f"there is no stage {name!r}; there are {', '.join(stage.name for stage in STAGES)}")
