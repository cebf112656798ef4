"""`baton doctor`: checks of this machine and of a running cluster."""

import json
import ssl
from pathlib import Path

import rich_click as click
from click import get_current_context
from rich.console import Console

from baton.cli.options.https_flags import https_flags
from baton.cli.options.server import clean_url, key_flag
from baton.cli.options.tls_flags import tls_flags
from baton.rpc.tls import Security
from baton.settings.names import TRANSPORTS
from baton.settings.registry_url import RegistryUrl, parse_registry_url
from baton.settings.values import OptionError

DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)


def _parse_registry(_context: click.Context, _parameter: click.Parameter, url: str | None) -> RegistryUrl | None:
    try:
        return parse_registry_url(url) if url is not None else None
    except OptionError as error:
        raise click.BadParameter(str(error)) from error


@click.command(name="doctor")
@click.option("--url", "--base-url", "url", callback=clean_url, help="Also check the cluster of this router.")
@key_flag
@click.option("--registry", callback=_parse_registry, help="Also check this registry (redis://...).")
@click.option(
    "--transport", type=click.Choice(TRANSPORTS), default="auto", show_default=True, help="KV transport to check."
)
@click.option(
    "--max-links", type=click.IntRange(0), default=64, show_default=True, help="Maximum cluster links to measure."
)
@click.option(
    "--kv-store", "kv_stores", multiple=True, help="Also check this store, as --kv-store or --kv-disk; repeatable."
)
@click.option("--weights-offload-dir", type=DIRECTORY, help="Also check this directory for --weights-offload disk.")
@click.option(
    "--model", type=click.Path(exists=True, path_type=Path), help="Checkpoint whose weights will be offloaded there."
)
@click.option("--strict", is_flag=True, help="Treat warnings as failures.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@https_flags
@tls_flags
def command(
    url: str | None,
    api_key: str | None,
    registry: RegistryUrl | None,
    transport: str,
    max_links: int,
    kv_stores: tuple[str, ...],
    weights_offload_dir: Path | None,
    model: Path | None,
    strict: bool,
    as_json: bool,
    https: ssl.SSLContext | None,
    security: Security,
) -> None:
    """Check that this machine, or a running cluster, is ready to serve, and report what to fix.

    Exits with status 1 if any check failed.

    \b
    Examples:
    $ baton doctor
    $ baton doctor --url http://127.0.0.1:8000
    $ baton doctor --registry redis://cache:6379/0 --strict
    $ baton doctor --kv-store /var/lib/kv --weights-offload-dir /nvme/weights --model /models/qwen3
    """
    from baton.doctor.cluster import RouterAddress  # these import torch, which --help must not wait for
    from baton.doctor.examination import Storage, examine
    from baton.doctor.report import Report, show

    router = RouterAddress(url, api_key, security, https) if url is not None else None
    if model is not None and weights_offload_dir is None:
        raise click.UsageError("--model: nothing to compare it with; set --weights-offload-dir too")
    errors = Console(stderr=True)
    with errors.status("checking this machine") as status:
        storage = Storage(weights_offload_dir, model, kv_stores)
        sections = examine(router, registry, storage, transport, max_links, status.update)
    report = Report(sections, strict)
    if as_json:
        click.echo(json.dumps(report.to_json(), indent=2))
    else:
        show(report, Console(highlight=False))
    get_current_context().exit(0 if report.is_healthy else 1)
