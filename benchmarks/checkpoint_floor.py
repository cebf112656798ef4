"""Lower bound of any engine's time for a wave of requests on a machine."""

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
    """Bytes and parameters that a model must read and compute, from its files."""

    weight_bytes: int
    active_parameters: float  # used per token, without the embedding table

    @classmethod
    def of(cls, directory: Path) -> "CheckpointFloor":
        """Read the headers of the checkpoint's safetensors files."""
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
        """Return the bound: prompts at the GEMM rate, then each step at memory bandwidth; attention is free."""
        prefill_s = 2 * self.active_parameters * prompt_len * num_requests / limits.gemm_flop_per_s
        step_s = max(
            self.weight_bytes / limits.read_bytes_per_s,
            2 * self.active_parameters * num_requests / limits.gemm_flop_per_s,
        )
        return prefill_s + (num_output_tokens - 1) * step_s
