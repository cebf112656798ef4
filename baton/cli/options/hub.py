"""Downloads from the Hugging Face hub."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import cast

import click

TOKENIZER_PATTERNS = ["*.json", "tokenizer*", "*.model", "*.txt", "*.jinja"]
HUB_PATTERNS = ["*.safetensors", *TOKENIZER_PATTERNS]
POOLING = "1_Pooling/"  # the only subdirectory that is read, of embedding models
IGNORED = ["[!1]*/*", "1[!_]*/*", "1_[!P]*/*"]  # files in others


def is_hub_id(text: str) -> bool:
    """Return whether a text may be the id of a repository, such as Qwen/Qwen3-0.6B."""
    return text.count("/") == 1 and not text.startswith((".", "/", "~"))


def at_revision(hub_id: str, revision: str | None) -> str:
    """Return a repository and its revision for messages."""
    return hub_id if revision is None else f"{hub_id}@{revision}"


def download(
    hub_id: str,
    patterns: list[str],
    directory: Path | None = None,
    revision: str | None = None,
    ignored: Sequence[str] = IGNORED,
) -> Path:
    """Download a repository's files that match the patterns and none of `ignored`, into a directory or the hub's cache.

    revision: branch, tag or commit; None: the main branch. In the cache, the returned directory has the name of the
    commit. Raises ClickException.
    """
    from huggingface_hub import snapshot_download

    click.echo(f"Downloading {at_revision(hub_id, revision)} from the Hugging Face hub")
    with _hub_errors(hub_id, revision):
        return Path(
            snapshot_download(
                hub_id, revision=revision, allow_patterns=patterns, ignore_patterns=list(ignored), local_dir=directory
            )
        )


def cached_snapshot(hub_id: str, revision: str | None = None) -> Path | None:
    """Return the directory of a revision in the hub's cache, named like the commit; None if it is not there."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(hub_id, revision=revision, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        return None


def hub_files(hub_id: str, patterns: list[str], revision: str | None = None) -> tuple[str | None, set[str]]:
    """Return the commit of a revision, and the names of its files that match the patterns. Raises ClickException."""
    commit, names = hub_names(hub_id, revision)
    wanted = {name for name in names if any(fnmatch(name, pattern) for pattern in patterns)}
    return commit, {name for name in wanted if "/" not in name.removeprefix(POOLING)}


def hub_names(hub_id: str, revision: str | None = None) -> tuple[str | None, set[str]]:
    """Return the commit of a revision, and the names of all its files. Raises ClickException."""
    from huggingface_hub import HfApi

    with _hub_errors(hub_id, revision):
        info = HfApi().model_info(hub_id, revision=revision)
    return info.sha, {each.rfilename for each in info.siblings or ()}


@contextmanager
def _hub_errors(hub_id: str, revision: str | None) -> Iterator[None]:
    """Turn any error of the hub's client into a ClickException."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RevisionNotFoundError

    # Its bases are OSError and the base error of the HTTP library, which differs between versions of the client.
    bases = cast("tuple[type[Exception], ...]", HfHubHTTPError.__bases__)
    expected: tuple[type[Exception], ...] = (*bases, HFValidationError)
    try:
        yield
    except RevisionNotFoundError as error:
        raise click.ClickException(f"{hub_id} has no branch, tag or commit {revision}") from error
    except expected as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise click.ClickException(
            f"{hub_id} is not a local directory, and it could not be downloaded from the hub: {reason}"
        ) from error
