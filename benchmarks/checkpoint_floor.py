"""The least time that any engine needs for a wave of requests on a machine."""

import json
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path

from baton.engine.checkpoint.model_config import read_model_config
from benchmarks.machine import MachineLimits

DTYPE_BYTES = {"BF16": 2, "F16": 2, "F32": 4}


@dataclass(frozen=True, slots=True)
class CheckpointFloor:
    """What a model must read and compute, from its files."""

    weight_bytes: int
    active_parameters: float  # that take part in one token's computation; the embedding table is only looked up

    @classmethod
    def of(cls, directory: Path) -> "CheckpointFloor":
        """Reads the headers of the checkpoint's safetensors files."""
        config = read_model_config(directory)
        share = config.moe.num_experts_per_token / config.moe.num_experts if config.moe else 1.0
        num_bytes, active = 0, 0.0
        for path in directory.glob("*.safetensors"):
            with path.open("rb") as file:
                (length,) = struct.unpack("<Q", file.read(8))
                header = json.loads(file.read(length))
            for name, tensor in header.items():
                if name == "__metadata__":
                    continue
                count = prod(tensor["shape"])
                num_bytes += count * DTYPE_BYTES[tensor["dtype"]]
                is_lookup = name == "model.embed_tokens.weight" and not config.tie_word_embeddings
                active += 0 if is_lookup else count * (share if ".experts." in name else 1.0)
        return cls(num_bytes, active)

    def wave_s(self, limits: MachineLimits, prompt_len: int, num_requests: int, num_output_tokens: int) -> float:
        """Prompts at the matrix rate, then each step at the rate at which the weights can be read; attention free."""
        prefill_s = 2 * self.active_parameters * prompt_len * num_requests / limits.gemm_flop_per_s
        step_s = max(
            self.weight_bytes / limits.read_bytes_per_s,
            2 * self.active_parameters * num_requests / limits.gemm_flop_per_s,
        )
        return prefill_s + (num_output_tokens - 1) * step_s
