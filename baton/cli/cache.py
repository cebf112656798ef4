"""`baton cache`: what the KV caches of a running server hold, and copies of stored KV for another one."""

import json
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import httpx
import rich_click as click
from rich.console import Console

from baton.cli.display.cache_table import cache_table
from baton.cli.display.status_table import worker_rows
from baton.cli.options.https_flags import https_flags
from baton.cli.options.server import key_flag, url_flag
from baton.extras import MissingExtra
from baton.kvtransfer.store.archive import export_blocks, import_blocks, matching, read_manifest
from baton.kvtransfer.store.block_source import InvalidExport
from baton.kvtransfer.store.factory import open_source
from baton.kvtransfer.store.store import StoreUnavailable
from baton.rpc.router_client import ServerError, check, connect, json_body, unreachable
from baton.settings.values import OptionError, parse_size

TIMEOUT_S = 30.0
CLEAR_S = 150.0  # a router waits 120 s for a store that a worker clears
CAPACITY = "32GiB"  # default of --kv-disk-bytes
TTL_S = 86400.0  # default of --kv-store-ttl-s
DAY_S = 86400.0
T = TypeVar("T")


@click.group(name="cache")
def command() -> None:
    """Show, clear, export and import cached KV."""


@command.command(name="stats")
@url_flag
@key_flag
@https_flags
@click.option("--json", "as_json", is_flag=True, help="Print the workers' numbers as JSON.")
def stats(url: str, api_key: str | None, as_json: bool, https: ssl.SSLContext | None) -> None:
    """Show what the KV cache and the stores of each worker hold, and what they saved."""
    content = _called(url, api_key, https, lambda client: client.get("/workers"))
    try:
        rows = worker_rows(content)
    except ValueError as error:
        raise click.ClickException(f"{url}: {error}") from error
    if as_json:
        click.echo(json.dumps([row.worker for row in rows], indent=2))
    else:
        Console(highlight=False, soft_wrap=True).print(cache_table(rows))


@command.command(name="clear")
@url_flag
@key_flag
@https_flags
@click.option("--model", help="Model whose workers clear their caches. Default: all models.")
@click.option("--tier", help="Store whose blocks are deleted, as `stats` names it. Default: the KV cache.")
def clear(url: str, api_key: str | None, https: ssl.SSLContext | None, model: str | None, tier: str | None) -> None:
    """Have all workers forget the cached blocks that no request and no pin holds.

    Stores below the KV cache keep theirs, unless --tier names one: it loses the blocks of the workers' model. If the
    server requires API keys, the key needs `admin: true`.
    """
    params = {name: value for name, value in (("model", model), ("tier", tier)) if value is not None}
    path = "/reset_prefix_cache"
    match _called(url, api_key, https, lambda client: client.post(path, params=params, json={}, timeout=CLEAR_S)):
        case {"blocks": dict() as blocks}:
            for worker, num_blocks in blocks.items():
                click.echo(f"{worker}: {num_blocks} blocks forgotten")
        case _:
            raise click.ClickException(f"{url}: the response is not that of a router")


@command.command(name="weights")
@click.option(
    "--dir", "directory", type=click.Path(file_okay=False, path_type=Path),
    help="Directory of --weights-offload-dir. Default: that of workers without the option.",
)  # fmt: skip
@click.option(
    "--unused-days", default=0.0, show_default=True, type=click.FloatRange(min=0),
    help="Choose only files that were not read for so many days.",
)  # fmt: skip
@click.option("--delete", is_flag=True, help="Delete the chosen files. Default: show them.")
def weights(directory: Path | None, unused_days: float, delete: bool) -> None:
    """Show the weights files of --weights-offload on this machine, or delete those that no process uses.

    A worker that needs a deleted file writes it again when it starts.

    \b
    Examples:
    $ baton cache weights
    $ baton cache weights --unused-days 30 --delete
    """
    from baton.engine.offload.file_store import DEFAULT_DIRECTORY  # these import torch
    from baton.engine.offload.old_files import stored_weights

    directory = directory or DEFAULT_DIRECTORY
    found = _archived(lambda: stored_weights(directory) if directory.exists() else [])
    chosen, num_bytes = 0, 0
    for each in found:
        is_chosen = not each.is_in_use and each.used_s <= time.time() - unused_days * DAY_S
        if is_chosen and delete:
            is_chosen = _archived(each.remove)
        chosen, num_bytes = chosen + is_chosen, num_bytes + each.num_bytes * is_chosen
        state = "kept" if not is_chosen else "deleted" if delete else "unused"
        state = "in use" if each.is_in_use else state
        used = time.strftime("%Y-%m-%d", time.localtime(each.used_s))
        click.echo(f"{each.path.name}: {each.num_bytes / 1e9:.2f} GB, last read {used}, {state}")
    done = "deleted" if delete else "would be deleted with --delete"
    click.echo(f"{directory}: {chosen} of {len(found)} files, {num_bytes / 1e9:.2f} GB, {done}")


@command.command(name="export")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--from", "place", required=True,
    help="Directory of --kv-disk, directory or URL of --kv-store, or host for --kv-host-memory-bytes.",
)  # fmt: skip
def export(directory: Path, place: str) -> None:
    """Copy the blocks of a store into DIRECTORY, even while workers use it.

    Encrypted blocks stay encrypted: the importing workers need the same key.

    \b
    Example:
    $ baton cache export /backup/kv --from /var/lib/kv
    """
    counts = _archived(lambda: export_blocks(open_source(place), directory))
    if not counts:
        click.echo("the store holds no block")
    for namespace, count in counts.items():
        click.echo(f"{namespace}: {count.num_blocks} blocks, {count.num_bytes} bytes")


@command.command(name="import")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--to", "target", required=True,
    help="Directory of --kv-disk, or directory or URL of --kv-store, of the workers.",
)  # fmt: skip
@click.option(
    "--max-bytes", default=CAPACITY, show_default=True,
    help="Size limit of a store in a directory, the same as the workers'.",
)  # fmt: skip
@click.option(
    "--ttl-s", default=TTL_S, show_default=True, type=click.FloatRange(min=1),
    help="Seconds after which a Redis server forgets a block, as the workers' --kv-store-ttl-s.",
)  # fmt: skip
@click.option(
    "--fingerprint",
    multiple=True,
    help="Fingerprint of the workers, in place of those of the server at --url; repeatable.",
)
@url_flag
@key_flag
@https_flags
def import_(
    directory: Path,
    target: str,
    max_bytes: str,
    ttl_s: float,
    fingerprint: tuple[str, ...],
    url: str,
    api_key: str | None,
    https: ssl.SSLContext | None,
) -> None:
    """Copy the blocks of an export in DIRECTORY into a store, from which workers fetch them.

    Refuses KV of other models, weights, data types or layouts than those of the workers, and damaged exports. All
    checksums are verified before the first block is written.

    \b
    Example:
    $ baton cache import /backup/kv --to /var/lib/kv
    """
    try:
        capacity_bytes = parse_size(max_bytes)
    except (ValueError, OverflowError) as error:
        raise click.UsageError(f"--max-bytes: {max_bytes!r} is not a size; give one such as 32GiB") from error
    where = "the given fingerprints are" if fingerprint else f"the workers at {url} have"
    manifest = _archived(lambda: read_manifest(directory))
    wanted = set(fingerprint) or _fingerprints(url, api_key, https)
    namespaces = _archived(lambda: matching(manifest, wanted, where))
    added = _archived(lambda: import_blocks(directory, namespaces, target, capacity_bytes, ttl_s))
    num_blocks = sum(manifest[namespace].num_blocks for namespace in namespaces)
    click.echo(f"{added.num_blocks} of {num_blocks} blocks were added, {added.num_bytes} bytes")


def _fingerprints(url: str, api_key: str | None, https: ssl.SSLContext | None) -> set[str]:
    """Return the fingerprints of a server's workers. Raises ClickException if it has none."""
    content = _called(url, api_key, https, lambda client: client.get("/workers"))
    found = {row.text("fingerprint") for row in worker_rows(content)} - {""}
    if not found:
        raise click.ClickException(f"{url} has no worker yet; give its --fingerprint, or wait for one")
    return found


def _called(
    url: str, api_key: str | None, https: ssl.SSLContext | None, call: Callable[[httpx.Client], httpx.Response]
) -> object:
    """Return the JSON content of a server's response. Raises ClickException."""
    with connect(url, TIMEOUT_S, api_key, https) as client:
        try:
            response = call(client)
            check(response)
            return json_body(response)
        except ServerError as error:
            raise click.ClickException(f"{url}: {error}") from error
        except httpx.TransportError as error:
            raise unreachable(url, error) from error


def _archived(work: Callable[[], T]) -> T:
    """Return the result of work on an export. Raises ClickException."""
    try:
        return work()
    except (InvalidExport, StoreUnavailable, OptionError, MissingExtra) as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"{error.filename or ''}: {error.strerror}".removeprefix(": ")) from error
