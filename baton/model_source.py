"""Where the model to serve comes from: a directory, a hub id, or the one that comes with Baton."""

from importlib.resources import files
from pathlib import Path

import click

from deployment.cluster_plan import Checkpoint
from engine.errors import EngineError
from engine.model_config import read_model_config

BUNDLED_NAME = "baton-bundled"
BUNDLED = Path(str(files("baton") / "bundled_model"))
HUB_PATTERNS = ["*.safetensors", "*.safetensors.index.json", "*.json", "tokenizer*", "*.model", "*.txt", "*.jinja"]


def find_checkpoint(model: str | None, dtype: str) -> Checkpoint:
    """The checkpoint that a MODEL argument means, checked as far as that goes without its weights.

    Raises ClickException if there is none or if it asks for something that is not implemented.
    """
    directory, name = _locate(model)
    try:
        config = read_model_config(directory, dtype)
    except EngineError as error:
        raise click.ClickException(f"cannot serve {name}: {error}") from error
    for pattern in ("*.safetensors", "tokenizer.json"):
        if not any(directory.glob(pattern)):
            raise click.ClickException(f"cannot serve {name}: no {pattern} in {directory}")
    return Checkpoint(directory, name, config)


def _locate(model: str | None) -> tuple[Path, str]:
    if model is None:
        return BUNDLED, BUNDLED_NAME
    path = Path(model).expanduser()
    if path.is_dir():
        return path.resolve(), path.resolve().name
    if path.exists() or model.startswith((".", "/", "~")) or model.count("/") != 1:
        raise click.ClickException(f"{model} is no directory, and no hub id such as Qwen/Qwen3-0.6B either")
    return download(model, HUB_PATTERNS), model


def download(hub_id: str, patterns: list[str], directory: Path | None = None) -> Path:
    """A model's files of these patterns from the hub, in a directory or the hub's own cache. Raises ClickException."""
    from httpx import TransportError
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    click.echo(f"Looking {hub_id} up in the Hugging Face hub")
    try:
        found = snapshot_download(hub_id, allow_patterns=patterns, ignore_patterns=["*/*"], local_dir=directory)
        return Path(found)
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, TransportError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise click.ClickException(
            f"{hub_id} is no directory here, and it could not be downloaded from the hub: {reason}"
        ) from error
