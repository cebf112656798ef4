"""Source of the model to serve: a directory, a GGUF file, a hub id, or the bundled model."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import click

from baton.cli.options.hub import HUB_PATTERNS, TOKENIZER_PATTERNS, download, is_hub_id
from baton.cli.options.hub_gguf import HubGguf
from baton.deployment.local.cluster_config import ClusterConfig, ClusterSettings
from baton.deployment.local.cluster_plan import Checkpoint, ClusterPlan, check_resources, plan_cluster
from baton.deployment.local.machine import this_machine
from baton.engine.checkpoint.gguf.tensors import model_name
from baton.engine.checkpoint.model_config import model_config_of
from baton.engine.checkpoint.packed.completeness import check_packed
from baton.engine.checkpoint.tensor_index import GGUF
from baton.engine.config import TOKENIZER, EngineConfig
from baton.engine.errors import EngineError
from baton.engine.speculation.drafts import draft_of
from baton.process.host_memory import host_memory
from baton.process.log_settings import LogSettings
from baton.settings.values import Value

BUNDLED_NAME = "baton-bundled"
BUNDLED = Path(str(files("baton") / "bundled_model"))


@dataclass(frozen=True, slots=True)
class Located:
    """Directory or GGUF file of a model, and its name."""

    path: Path
    name: str
    commit: str | None = None  # of a model of the hub


def find_checkpoint(cluster: ClusterConfig, engine: Mapping[str, Value]) -> Checkpoint:
    """Return the checkpoint that a cluster serves, after all checks that do not need the weights.

    engine: options of the engines that will load it, without `model`. Raises ClickException if it is not found or not
    supported.
    """
    from baton.engine.checkpoint.gguf.directory import checkpoint_directory  # heavy, and --help needs none of it

    model = _locate(cluster.model, cluster.revision)
    tokenizer = _locate_tokenizer(cluster)
    with servable(model.name):
        directory = checkpoint_directory(model.path, with_tokenizer=tokenizer is None)
        config = model_config_of(_engine(directory, tokenizer, engine))
    if not any(any(directory.glob(pattern)) for pattern in ("*.safetensors", "*.gguf")):
        raise click.ClickException(f"cannot serve {model.name}: no *.safetensors in {directory}")
    if not ((tokenizer or directory) / TOKENIZER).is_file():
        raise click.ClickException(
            f"cannot serve {model.name}: no {TOKENIZER} in {tokenizer or directory}; name a directory or hub id that "
            "has it with --tokenizer"
        )
    with servable(model.name):
        check_packed(directory, config.stored_quantization)
        draft_of(_engine(directory, tokenizer, engine), config)
    return Checkpoint(directory, model.name, config, tokenizer, model.commit)


def _engine(directory: Path, tokenizer: Path | None, options: Mapping[str, Value]) -> EngineConfig:
    named = None if tokenizer is None else str(tokenizer)
    return EngineConfig(model=str(directory), tokenizer=named, **options)  # type: ignore[arg-type]  # checked when read


def plan_model(settings: ClusterSettings, checkpoint: Checkpoint, sockets: Path, log: LogSettings) -> ClusterPlan:
    """Return the processes that serve a checkpoint on this machine.

    Raises OptionError, or ClickException if the machine has not enough memory.
    """
    plan = plan_cluster(settings, checkpoint, this_machine(), sockets, log)
    with servable(checkpoint.name):
        check_resources(plan, checkpoint.config, host_memory())
    return plan


@contextmanager
def servable(name: str) -> Iterator[None]:
    """Turn an EngineError about a model into a ClickException."""
    try:
        yield
    except EngineError as error:
        raise click.ClickException(f"cannot serve {name}: {error}") from error


def _locate(model: str | None, revision: str | None = None) -> Located:
    """Find or download a model. Raises ClickException."""
    if model is not None and (gguf := _hub_gguf(model)) is not None:
        file, commit = gguf.download(revision)
        return Located(file.absolute(), model, commit)
    if model is not None and is_hub_id(model) and not Path(model).exists():
        directory = download(model, HUB_PATTERNS, revision=revision)
        return Located(directory, model, directory.name)
    if revision is not None:
        raise click.ClickException(f"--revision is for models of the Hugging Face hub, not for {model or BUNDLED_NAME}")
    if model is None:
        return Located(BUNDLED, BUNDLED_NAME)
    path = Path(model).expanduser()
    if path.is_dir():
        return Located(path.resolve(), path.resolve().name)
    if path.suffix == GGUF and path.is_file():
        return Located(path.absolute(), model_name(path))  # in the hub's cache a link to a file without a suffix
    raise click.ClickException(f"{model} is neither a directory, a GGUF file nor a hub id such as Qwen/Qwen3-0.6B")


def _hub_gguf(model: str) -> HubGguf | None:
    return None if Path(model).exists() else HubGguf.read(model)


def _locate_tokenizer(cluster: ClusterConfig) -> Path | None:
    """Find or download the tokenizer; None if it is the model's. Raises ClickException."""
    revision = cluster.tokenizer_revision
    tokenizer = cluster.tokenizer
    if tokenizer is None and revision is not None and cluster.model is not None:
        gguf = _hub_gguf(cluster.model)
        tokenizer = cluster.model if gguf is None else gguf.hub_id
    if tokenizer is not None and is_hub_id(tokenizer) and not Path(tokenizer).exists():
        return download(tokenizer, TOKENIZER_PATTERNS, revision=revision)
    if revision is not None:
        name = tokenizer or BUNDLED_NAME
        raise click.ClickException(f"--tokenizer-revision is for tokenizers of the Hugging Face hub, not for {name}")
    if tokenizer is None:
        return None
    path = Path(tokenizer).expanduser()
    if not path.is_dir():
        raise click.ClickException(
            f"--tokenizer: {tokenizer} is neither a directory nor a hub id such as Qwen/Qwen3-0.6B"
        )
    return path.resolve()
