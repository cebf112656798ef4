"""Source of the model to serve: a directory, a GGUF file, a hub id, or the bundled model."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatch
from importlib.resources import files
from pathlib import Path
from typing import cast

import click

from baton.deployment.local.cluster_plan import Checkpoint
from baton.engine.checkpoint.gguf.tensors import model_name
from baton.engine.checkpoint.model_config import model_config_of
from baton.engine.checkpoint.packed.completeness import check_packed
from baton.engine.checkpoint.tensor_index import GGUF
from baton.engine.config import EngineConfig
from baton.engine.errors import EngineError
from baton.settings.values import Value

BUNDLED_NAME = "baton-bundled"
BUNDLED = Path(str(files("baton") / "bundled_model"))
HUB_PATTERNS = ["*.safetensors", "*.safetensors.index.json", "*.json", "tokenizer*", "*.model", "*.txt", "*.jinja"]
POOLING = "1_Pooling/"  # the only subdirectory that is read, of embedding models
IGNORED = ["[!1]*/*", "1[!_]*/*", "1_[!P]*/*"]  # files in others


def find_checkpoint(model: str | None, engine: Mapping[str, Value]) -> Checkpoint:
    """Return the checkpoint for a MODEL argument, after all checks that do not need the weights.

    engine: options of the engines that will load it, without `model`. Raises ClickException if it is not found or not
    supported.
    """
    from baton.engine.checkpoint.gguf.directory import checkpoint_directory  # heavy, and --help needs none of it

    directory, name = _locate(model)
    with servable(name):
        directory = checkpoint_directory(directory)
        config = model_config_of(EngineConfig(model=str(directory), **engine))  # type: ignore[arg-type]  # checked when read
    for patterns in (("*.safetensors", "*.gguf"), ("tokenizer.json",)):
        if not any(any(directory.glob(pattern)) for pattern in patterns):
            raise click.ClickException(f"cannot serve {name}: no {patterns[0]} in {directory}")
    with servable(name):
        check_packed(directory, config.stored_quantization)
    return Checkpoint(directory, name, config)


@contextmanager
def servable(name: str) -> Iterator[None]:
    """Turn an EngineError about a model into a ClickException."""
    try:
        yield
    except EngineError as error:
        raise click.ClickException(f"cannot serve {name}: {error}") from error


def _locate(model: str | None) -> tuple[Path, str]:
    if model is None:
        return BUNDLED, BUNDLED_NAME
    path = Path(model).expanduser()
    if path.is_dir():
        return path.resolve(), path.resolve().name
    if path.suffix == GGUF and path.is_file():
        return path.absolute(), model_name(path)  # in the hub's cache a link to a file without a suffix
    if path.exists() or model.startswith((".", "/", "~")) or model.count("/") != 1:
        raise click.ClickException(f"{model} is neither a directory, a GGUF file nor a hub id such as Qwen/Qwen3-0.6B")
    return download(model, HUB_PATTERNS), model


def download(hub_id: str, patterns: list[str], directory: Path | None = None) -> Path:
    """Download a model's files that match the patterns, into a directory or the hub's cache. Raises ClickException."""
    from huggingface_hub import snapshot_download

    click.echo(f"Downloading {hub_id} from the Hugging Face hub")
    with _hub_errors(hub_id):
        return Path(snapshot_download(hub_id, allow_patterns=patterns, ignore_patterns=IGNORED, local_dir=directory))


def hub_files(hub_id: str, patterns: list[str]) -> set[str]:
    """Return the names of the model's files that match the patterns. Raises ClickException."""
    from huggingface_hub import HfApi

    with _hub_errors(hub_id):
        names = {each.rfilename for each in HfApi().model_info(hub_id).siblings or ()}
    wanted = {name for name in names if any(fnmatch(name, pattern) for pattern in patterns)}
    return {name for name in wanted if "/" not in name.removeprefix(POOLING)}


@contextmanager
def _hub_errors(hub_id: str) -> Iterator[None]:
    """Turn any error of the hub's client into a ClickException."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    # Its bases are OSError and the base error of the HTTP library, which differs between versions of the client.
    bases = cast("tuple[type[Exception], ...]", HfHubHTTPError.__bases__)
    expected: tuple[type[Exception], ...] = (*bases, HFValidationError)
    try:
        yield
    except expected as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise click.ClickException(
            f"{hub_id} is not a local directory, and it could not be downloaded from the hub: {reason}"
        ) from error
