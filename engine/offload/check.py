"""Refusal of what weights offload does not combine with."""

from baton.engine.config import EngineConfig, ModelConfig
from baton.engine.errors import UnsupportedModel


def check_offload(config: EngineConfig, model: ModelConfig, num_ranks: int, *, is_expert_parallel: bool) -> None:
    """Raise UnsupportedModel for options that weights offload does not combine with."""
    kind = config.offload.kind
    if kind == "none":
        return
    if num_ranks > 1 or is_expert_parallel:
        name = "expert_parallel" if is_expert_parallel else "tensor_parallel"
        raise UnsupportedModel(f"weights_offload is {kind}, which is not supported with {name}: leave one of them out")
    if kind == "host" and config.is_on_cpu:
        raise UnsupportedModel(
            "weights_offload host is for GPUs: on a CPU the weights are in host memory already. Set it to disk"
        )
    if kind == "disk" and not config.is_on_cpu:
        raise UnsupportedModel("weights_offload disk is for CPUs: on a GPU set it to host")
    if kind == "host" and model.moe is not None:
        raise UnsupportedModel(
            f"weights_offload host is not supported for mixtures of experts ({model.architecture}) on a GPU: experts "
            "are one product there. On a CPU, weights_offload disk streams experts"
        )
    if config.offload.expert_bytes is not None and model.moe is None:
        raise UnsupportedModel(f"expert_cache_bytes: {model.architecture} has no experts; leave it out")
