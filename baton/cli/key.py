"""`baton key`: API keys for a router's --api-keys-file."""

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import rich_click as click
import yaml

from baton.router.auth.api_key import digest_of, new_key
from baton.router.auth.keys_file import InvalidKeysFile, KeyEntry, KeysFile, read_keys


@click.group(name="key")
def command() -> None:
    """Create and check API keys for clients."""


@command.command(name="new")
@click.option("--name", required=True, help="Owner of the key, for logs.")
@click.option("--priority", type=int, default=0, show_default=True, help="Request priority; lower runs first.")
@click.option("--max-inflight", type=click.IntRange(1), help="Maximum completions queued or running.")
@click.option("--requests-per-minute", type=click.IntRange(1), help="Maximum requests a minute.")
@click.option("--tokens-per-minute", type=click.IntRange(1), help="Maximum prompt and output tokens a minute.")
@click.option("--cache-salt", help="Prefix-cache scope; only keys with the same salt share cached prompts.")
@click.option(
    "--max-pinned-fraction",
    type=click.FloatRange(0, 1, min_open=True),
    help="Largest share of a worker's KV cache that its pins may hold.",
)
@click.option(
    "--admin",
    is_flag=True,
    help="Allow it to load and unload LoRA adapters, clear the workers' caches, and use the web console.",
)
@click.option("--expires-in-days", type=click.FloatRange(0, 36500, min_open=True), help="Days until it is rejected.")
def new(expires_in_days: float | None, **fields: object) -> None:
    """Print a new key, and its entry for --api-keys-file.

    The key is shown once and not stored: the file holds only its SHA-256 digest.
    """
    key = new_key()
    expires = None
    if expires_in_days is not None:
        time = datetime.now(UTC) + timedelta(days=expires_in_days)
        expires = time.isoformat(timespec="seconds").replace("+00:00", "Z")
    entry = KeyEntry(sha256=digest_of(key.encode()).hex(), expires=expires, **fields)  # type: ignore[arg-type]  # click checked them
    text = _entry_text(entry)
    try:
        read_keys(f"keys:\n{text}".encode(), "the entry")
    except InvalidKeysFile as error:
        raise click.UsageError(str(error)) from error
    click.echo(key)
    click.echo("\nThe key is not stored. Add this entry to the list `keys` of the --api-keys-file:\n", err=True)
    click.echo(text, nl=False)


@command.command(name="check")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def check(file: Path) -> None:
    """Check that FILE is a valid --api-keys-file, and print the names of its keys."""
    try:
        keys = KeysFile(str(file)).read()
    except InvalidKeysFile as error:
        raise click.ClickException(str(error)) from error
    for key in keys:
        click.echo(key.name)


def _entry_text(entry: KeyEntry) -> str:
    """Return the entry as YAML, without fields that have their default."""
    given = {name: value for name, value in asdict(entry).items() if value not in (None, 0, False)}
    lines = yaml.safe_dump([given], sort_keys=False).splitlines()
    return "".join(f"  {line}\n" for line in lines)
