"""`baton fetch`: puts a model into a directory, for processes that get no model by themselves."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from baton.model_source import BUNDLED, HUB_PATTERNS, download

BUNDLED_WORD = "bundled"
MARKER = ".baton-fetched"  # in a directory that is complete; says what is there
WHOLE, WITHOUT_WEIGHTS = "whole", "without weights"
WEIGHTS = ("*.safetensors", "*.safetensors.index.json")


@click.command(name="fetch")
@click.argument("model")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option("--without-weights", is_flag=True, help="Only what a router needs.")
def command(model: str, directory: Path, without_weights: bool) -> None:
    """Put MODEL, a Hugging Face id or `bundled`, into DIRECTORY, unless it is there.

    Of several that fetch into one directory, also from several machines, one does and the others wait for it.
    """
    wanted = WITHOUT_WEIGHTS if without_weights else WHOLE
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _locked(directory.parent / f".{directory.name}.lock"):
            if _marked(directory) in (f"{WHOLE} {model}", f"{wanted} {model}"):
                click.echo(f"{model} is in {directory}")
                return
            _fetch(model, directory, without_weights)
            _mark(directory, f"{wanted} {model}")
    except OSError as error:
        raise click.ClickException(f"{directory}: {error}") from error
    click.echo(f"{model} was put into {directory}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """The file's lock, which goes with the process that holds it."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            click.echo(f"somebody else fetches: waiting for {path}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(model: str, directory: Path, without_weights: bool) -> None:
    if model == BUNDLED_WORD:
        ignored = shutil.ignore_patterns(*WEIGHTS) if without_weights else None
        shutil.copytree(BUNDLED, directory, ignore=ignored, dirs_exist_ok=True)
        return
    if model.count("/") != 1 or model.startswith((".", "/", "~")):
        raise click.UsageError(f"{model} is no hub id such as Qwen/Qwen3-0.6B, and not `{BUNDLED_WORD}`")
    patterns = [each for each in HUB_PATTERNS if not (without_weights and each in WEIGHTS)]
    download(model, patterns, directory)


def _marked(directory: Path) -> str:
    try:
        return (directory / MARKER).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def _mark(directory: Path, text: str) -> None:
    """Says that all is there, once it is: after a crash it either says so or not."""
    fresh = directory / f"{MARKER}.new"
    with fresh.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(directory / MARKER)
