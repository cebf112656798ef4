"""The hello of a follower rank: the options that all ranks of a worker must have in common."""

from importlib import metadata
from pathlib import Path

from baton.engine.checkpoint.model_config import model_config_of
from baton.engine.config import EngineConfig
from baton.engine.kv.fingerprint import compatibility_fingerprint
from baton.protos import rank_pb2
from baton.settings.options import options_of
from baton.settings.values import shown
from baton.worker.config import WorkerConfig

OF_A_NODE = (
    "model",
    "tokenizer",
    "device",
    "cores",
    "num_threads",
)  # differ from node to node, or are compared by content
SHARED = ("tensor_parallel", "expert_parallel", "nnodes", "transport")


def hello_of(config: WorkerConfig, rank: int) -> rank_pb2.RankHello:
    """Return the hello of a worker's rank. Raises InvalidCheckpoint if its model cannot be read."""
    engine, directory = config.engine, Path(config.engine.model)
    model, tokenizer = model_config_of(engine), Path(engine.tokenizer_directory)
    fingerprint = compatibility_fingerprint(directory, model, engine.block_size, "", tokenizer)
    return rank_pb2.RankHello(
        rank=rank,
        options={
            "version": metadata.version("baton-serve"),
            "model": f"{model.architecture} ({fingerprint})",
            "device": engine.device.partition(":")[0],
            **{name: str(getattr(config, name)) for name in SHARED},
            "KV stores": " ".join(config.kv_tiers),
            **{name: str(getattr(engine, name)) for name in options_of(EngineConfig) if name not in OF_A_NODE},
        },
    )


def refusal_of(hello: rank_pb2.RankHello, first: rank_pb2.RankHello) -> str | None:
    """Return how a rank differs from the first one, with both values; None if it is one of its worker's ranks."""
    # A model's fingerprint covers other options too, so it comes last.
    for name in sorted(first.options, key=lambda name: (name == "model", name != "version", name)):
        value, theirs = first.options[name], hello.options.get(name)
        if theirs != value:
            of_theirs = "none" if theirs is None else shown(theirs)
            return f"{name} is {of_theirs} on rank {hello.rank} and {shown(value)} on rank 0; set the same on all nodes"
    size = int(first.options["tensor_parallel"])
    if not 0 < hello.rank < size:
        return f"there is no rank {hello.rank} to connect; the ranks are 1 to {size - 1}"
    return None
