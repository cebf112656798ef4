"""`baton fetch`: download of a model into a directory, for processes that do not download models themselves."""

import asyncio
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import rich_click as click

from baton.cli.options.hub import HUB_PATTERNS, at_revision, download, hub_files, is_hub_id
from baton.cli.options.hub_gguf import HubGguf
from baton.cli.options.model_argument import one_model
from baton.cli.options.model_source import BUNDLED
from baton.rpc.backoff import Backoff

BUNDLED_WORD = "bundled"
MARKER = ".baton-fetched"  # in a complete directory; its text is what was downloaded
WHOLE, WITHOUT_WEIGHTS = "whole", "without weights"
WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
POLL_S = 2.0
TRIES = 6
FIRST_BACKOFF_S, LAST_BACKOFF_S = 2.0, 60.0
RETRYABLE = (408, 425, 429)  # client errors worth another attempt; the other 4xx are permanent


@click.command(name="fetch")
@click.argument("words", nargs=-1, required=True, metavar="[MODEL] DIRECTORY")
@click.option("--model", help="MODEL, as an option instead of an argument.")
@click.option("--revision", help="Branch, tag or commit of the model. Default: its main branch.")
@click.option("--without-weights", is_flag=True, help="Skip the weights; enough for a router.")
@click.option("--wait", is_flag=True, help="Do not download; wait until another process has.")
@click.option(
    "--tries", type=click.IntRange(min=1), default=TRIES, show_default=True, help="Maximum download attempts."
)
def command(
    words: tuple[str, ...], model: str | None, revision: str | None, without_weights: bool, wait: bool, tries: int
) -> None:
    """Download MODEL, a Hugging Face id or `bundled`, into DIRECTORY, unless it is already there.

    An id may name one of the GGUF models in a repository by its quantization: org/repo:Q4_K_M.

    Processes that fetch into the same directory, even from different machines, take turns: one downloads, the others
    wait.

    \b
    Examples:
    $ baton fetch Qwen/Qwen3-0.6B /models/Qwen3-0.6B
    $ baton fetch Qwen/Qwen3-0.6B /models/Qwen3-0.6B-v1 --revision v1.0
    $ baton fetch unsloth/Qwen3-0.6B-GGUF:Q4_K_M /models/Qwen3-0.6B-GGUF
    $ baton fetch bundled /models/baton --without-weights
    """
    model, directory = _model_and_directory(words, model)
    name = at_revision(model, revision)
    wanted = WITHOUT_WEIGHTS if without_weights else WHOLE
    enough = (f"{WHOLE} {name}", f"{wanted} {name}")
    try:
        if wait:
            _await(directory, name, enough)
            return
        directory.mkdir(parents=True, exist_ok=True)
        with _locked(directory.parent / f".{directory.name}.lock"):
            if _marked(directory) in enough:
                click.echo(f"{name} is already in {directory}")
                return
            _check_free(directory, name)
            _fetch(model, revision, directory, without_weights, tries)
            _mark(directory, f"{wanted} {name}")
    except OSError as error:
        raise click.ClickException(f"{directory}: {error}") from error
    click.echo(f"downloaded {name} to {directory}")


def _model_and_directory(words: tuple[str, ...], option: str | None) -> tuple[str, Path]:
    """Return MODEL, from the argument or the option, and DIRECTORY. Raises UsageError."""
    *names, directory = words
    model = one_model(names[0] if names else None, option)
    if len(names) > 1 or model is None:
        raise click.UsageError(f"MODEL and DIRECTORY are required; got {' '.join(words)}")
    if Path(directory).is_file():
        raise click.UsageError(f"{directory} is a file; DIRECTORY must be the directory for the model")
    return model, Path(directory)


def _check_free(directory: Path, name: str) -> None:
    """Raise ClickException if the directory has another model or revision, whose files would remain among the new."""
    other = _marked(directory).removeprefix(WHOLE).removeprefix(WITHOUT_WEIGHTS).strip()
    if other not in ("", name):
        raise click.ClickException(f"{directory} has {other}; give another directory for {name}, or remove this one")


def _await(directory: Path, name: str, enough: Collection[str]) -> None:
    """Wait for the marker. Writes nothing: the directory may be read-only for this process.

    Raises ClickException if the directory has another model or revision.
    """
    if _marked(directory) not in enough:
        click.echo(f"waiting for another process to download {name} to {directory}")
    while _marked(directory) not in enough:
        _check_free(directory, name)  # the other process would refuse too
        time.sleep(POLL_S)
    click.echo(f"{name} is already in {directory}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the file's lock, which the kernel releases if the process dies."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            click.echo(f"another process is downloading: waiting for the lock {path}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(model: str, revision: str | None, directory: Path, without_weights: bool, tries: int) -> None:
    if model == BUNDLED_WORD:
        if revision is not None:
            raise click.UsageError(f"--revision is for models of the hub, not for `{BUNDLED_WORD}`")
        ignored = shutil.ignore_patterns(*WEIGHTS) if without_weights else None
        shutil.copytree(BUNDLED, directory, ignore=ignored, dirs_exist_ok=True)
        return
    if gguf := HubGguf.read(model):
        if without_weights:
            raise click.UsageError("--without-weights: a GGUF file has the tokenizer and the config in it; fetch all")
        asyncio.run(_retried(lambda: _download_gguf(gguf, revision, directory), tries))
        return
    if not is_hub_id(model):
        raise click.UsageError(f"{model} is neither a hub id such as Qwen/Qwen3-0.6B nor `{BUNDLED_WORD}`")
    patterns = [each for each in HUB_PATTERNS if not (without_weights and each in WEIGHTS)]
    asyncio.run(_retried(lambda: _download_all(model, revision, patterns, directory), tries))


def _download_gguf(gguf: HubGguf, revision: str | None, directory: Path) -> None:
    file, _ = gguf.download(revision, directory)
    click.echo(f"the model is {file}")


async def _retried(download_all: Callable[[], None], tries: int) -> None:
    """Download, with retries after temporary failures: KubeRay gives a pod up when its first container fails."""
    backoff = Backoff(FIRST_BACKOFF_S, LAST_BACKOFF_S)
    for left in range(tries - 1, -1, -1):
        try:
            download_all()
            return
        except click.ClickException as error:
            if not left or isinstance(error, click.UsageError) or _is_permanent(error.__cause__):
                raise
            click.echo(f"{error.message}; tries left: {left}", err=True)
        await backoff.wait()


def _download_all(hub_id: str, revision: str | None, patterns: list[str], directory: Path) -> None:
    """Download one commit and check that every file is there. Raises ClickException.

    The hub's client accepts any non-empty directory as complete if it cannot reach the hub, so this checks the names.
    """
    commit, names = hub_files(hub_id, patterns, revision)
    download(hub_id, patterns, directory, commit or revision)
    if missing := sorted(name for name in names if not (directory / name).is_file()):
        raise click.ClickException(f"{hub_id} is incomplete: {', '.join(missing)} could not be downloaded from the hub")


def _is_permanent(error: BaseException | None) -> bool:
    """Whether a retry would fail too: the model does not exist, or access is denied."""
    if isinstance(error, ValueError):
        return True
    status = getattr(getattr(error, "response", None), "status_code", 500)
    return bool(400 <= status < 500 and status not in RETRYABLE)


def _marked(directory: Path) -> str:
    try:
        return (directory / MARKER).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def _mark(directory: Path, text: str) -> None:
    """Mark the directory as complete. The rename is atomic, so a crash leaves either the whole marker or none."""
    fresh = directory / f"{MARKER}.new"
    with fresh.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(directory / MARKER)
