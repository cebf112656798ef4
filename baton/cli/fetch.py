"""`baton fetch`: puts a model into a directory, for processes that get no model by themselves."""

import asyncio
import fcntl
import os
import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import rich_click as click

from baton.cli.options.model_argument import one_model
from baton.cli.options.model_source import BUNDLED, HUB_PATTERNS, download, hub_files
from baton.rpc.backoff import Backoff

BUNDLED_WORD = "bundled"
MARKER = ".baton-fetched"  # in a directory that is complete; says what is there
WHOLE, WITHOUT_WEIGHTS = "whole", "without weights"
WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
POLL_S = 2.0
TRIES = 6
FIRST_BACKOFF_S, LAST_BACKOFF_S = 2.0, 60.0
MAY_PASS = (408, 425, 429)  # answers that mean: later; else a refusal is one for good


@click.command(name="fetch")
@click.argument("words", nargs=-1, required=True, metavar="[MODEL] DIRECTORY")
@click.option("--model", help="MODEL, instead of the argument.")
@click.option("--without-weights", is_flag=True, help="Only what a router needs.")
@click.option("--wait", is_flag=True, help="Download nothing: wait until somebody else has put it there.")
@click.option(
    "--tries", type=click.IntRange(min=1), default=TRIES, show_default=True, help="Downloads to begin if the hub fails."
)
def command(words: tuple[str, ...], model: str | None, without_weights: bool, wait: bool, tries: int) -> None:
    """Put MODEL, a Hugging Face id or `bundled`, into DIRECTORY, unless it is there.

    Of several that fetch into one directory, also from several machines, one does and the others wait for it.

    \b
    Examples:
    $ baton fetch Qwen/Qwen3-0.6B /models/Qwen3-0.6B
    $ baton fetch bundled /models/baton --without-weights
    """
    model, directory = _model_and_directory(words, model)
    wanted = WITHOUT_WEIGHTS if without_weights else WHOLE
    enough = (f"{WHOLE} {model}", f"{wanted} {model}")
    try:
        if wait:
            _await(directory, model, enough)
            return
        directory.mkdir(parents=True, exist_ok=True)
        with _locked(directory.parent / f".{directory.name}.lock"):
            if _marked(directory) in enough:
                click.echo(f"{model} is in {directory}")
                return
            _fetch(model, directory, without_weights, tries)
            _mark(directory, f"{wanted} {model}")
    except OSError as error:
        raise click.ClickException(f"{directory}: {error}") from error
    click.echo(f"{model} was put into {directory}")


def _model_and_directory(words: tuple[str, ...], option: str | None) -> tuple[str, Path]:
    """Return MODEL, from the argument or the option, and DIRECTORY. Raises UsageError."""
    *names, directory = words
    model = one_model(names[0] if names else None, option)
    if len(names) > 1 or model is None:
        raise click.UsageError(f"MODEL and DIRECTORY are needed; got {' '.join(words)}")
    if Path(directory).is_file():
        raise click.UsageError(f"{directory} is a file; DIRECTORY is where the model goes")
    return model, Path(directory)


def _await(directory: Path, model: str, enough: Collection[str]) -> None:
    """Writes nothing, for the directory may be one that only others may write to."""
    if _marked(directory) not in enough:
        click.echo(f"waiting until somebody else has put {model} into {directory}")
    while _marked(directory) not in enough:
        time.sleep(POLL_S)
    click.echo(f"{model} is in {directory}")


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


def _fetch(model: str, directory: Path, without_weights: bool, tries: int) -> None:
    if model == BUNDLED_WORD:
        ignored = shutil.ignore_patterns(*WEIGHTS) if without_weights else None
        shutil.copytree(BUNDLED, directory, ignore=ignored, dirs_exist_ok=True)
        return
    if model.count("/") != 1 or model.startswith((".", "/", "~")):
        raise click.UsageError(f"{model} is no hub id such as Qwen/Qwen3-0.6B, and not `{BUNDLED_WORD}`")
    patterns = [each for each in HUB_PATTERNS if not (without_weights and each in WEIGHTS)]
    asyncio.run(_download(model, patterns, directory, tries))


async def _download(hub_id: str, patterns: list[str], directory: Path, tries: int) -> None:
    """Begins anew after failures that may pass: a pod of Ray's is given up with its first container that fails."""
    backoff = Backoff(FIRST_BACKOFF_S, LAST_BACKOFF_S)
    for left in range(tries - 1, -1, -1):
        try:
            _download_all(hub_id, patterns, directory)
            return
        except click.ClickException as error:
            if not left or _is_for_good(error.__cause__):
                raise
            click.echo(f"{error.message}; tries left: {left}", err=True)
        await backoff.wait()


def _download_all(hub_id: str, patterns: list[str], directory: Path) -> None:
    """Raises ClickException, also where the hub's client is content with a part: it takes a directory in which
    something is for a whole one if it cannot ask the hub.
    """
    names = hub_files(hub_id, patterns)
    download(hub_id, patterns, directory)
    if missing := sorted(name for name in names if not (directory / name).is_file()):
        raise click.ClickException(f"{hub_id} is not whole: {', '.join(missing)} could not be downloaded from the hub")


def _is_for_good(error: BaseException | None) -> bool:
    """Whether the hub would say the same of another try: there is no such model, or it is not for us."""
    if isinstance(error, ValueError):
        return True
    status = getattr(getattr(error, "response", None), "status_code", 500)
    return bool(400 <= status < 500 and status not in MAY_PASS)


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
