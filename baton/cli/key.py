"""`baton key`: API keys for the file that routers take them from."""

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import rich_click as click
import yaml

from baton.router.auth.api_key import digest_of, new_key
from baton.router.auth.keys_file import InvalidKeysFile, KeyEntry, KeysFile, read_keys


@click.group(name="key")
def command() -> None:
    """Make API keys for clients."""


@command.command(name="new")
@click.option("--name", required=True, help="Whose key it is; it stands in logs.")
@click.option("--priority", type=int, default=0, show_default=True, help="Of its requests; lower is served earlier.")
@click.option("--max-inflight", type=click.IntRange(1), help="Most choices that wait or are generated.")
@click.option("--requests-per-minute", type=click.IntRange(1), help="Requests a minute.")
@click.option("--tokens-per-minute", type=click.IntRange(1), help="Tokens of prompts and outputs a minute.")
@click.option("--cache-salt", help="Scope: keys of one scope find each other's prompts in caches.")
@click.option("--expires-in-days", type=click.FloatRange(0, 36500, min_open=True), help="It is refused after that.")
def new(expires_in_days: float | None, **fields: object) -> None:
    """Print a new key and its entry for the file.

    The key is shown once and kept nowhere: the file has its digest.
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
    click.echo("\nOnly its digest is kept; add to the list `keys` of the file that --api-keys-file names:\n", err=True)
    click.echo(text, nl=False)


@command.command(name="check")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def check(file: Path) -> None:
    """Say whether routers would take FILE, and which keys it has."""
    try:
        keys = KeysFile(str(file)).read()
    except InvalidKeysFile as error:
        raise click.ClickException(str(error)) from error
    for key in keys:
        click.echo(key.name)


def _entry_text(entry: KeyEntry) -> str:
    """The entry in YAML, without what is as it would be anyway."""
    given = {name: value for name, value in asdict(entry).items() if value not in (None, 0)}
    lines = yaml.safe_dump([given], sort_keys=False).splitlines()
    return "".join(f"  {line}\n" for line in lines)
