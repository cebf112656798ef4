"""`baton status`: live table of a router's workers."""

import json
import ssl
import sys
import time
from collections.abc import Iterator

import httpx
import rich_click as click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from baton.cli.display.status_table import (
    adapter_lines,
    offload_lines,
    pin_lines,
    status_table,
    tier_lines,
    transport_lines,
    worker_rows,
)
from baton.cli.options.https_flags import https_flags
from baton.cli.options.server import key_flag, url_flag
from baton.process.states import process_reports
from baton.rpc.router_client import ServerError, check, connect, json_body, unreachable

READ_TIMEOUT_S = 10.0


@click.command(name="status")
@url_flag
@key_flag
@https_flags
@click.option("--once", is_flag=True, help="Print the table once and exit. Default if the output is not a terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print the server's JSON response once and exit.")
@click.option(
    "--interval-s", type=click.FloatRange(0.1, 3600), default=1.0, show_default=True, help="Seconds between refreshes."
)
def command(
    url: str, api_key: str | None, once: bool, as_json: bool, interval_s: float, https: ssl.SSLContext | None
) -> None:
    """Show a running server's workers: load, caches, and the KV transports between them.

    \b
    Examples:
    $ baton status
    $ baton status --url http://127.0.0.1:8080 --once
    """
    with connect(url, READ_TIMEOUT_S, api_key, https) as client:
        try:
            content = _fetch(client)
            if as_json:
                click.echo(json.dumps(content, indent=2))
            elif once or not sys.stdout.isatty():
                console = Console(highlight=False, soft_wrap=True)
                console.print(_render(content, url, console.width))
            else:
                _watch(client, url, interval_s)
        except httpx.TransportError as error:
            raise unreachable(url, error) from error
        except (ServerError, ValueError) as error:
            raise click.ClickException(f"{url}: {error}") from error


def _fetch(client: httpx.Client) -> object:
    response = client.get("/workers")
    check(response)
    return json_body(response)


def _render(content: object, url: str, width: int) -> RenderableType:
    rows = worker_rows(content)
    router = content.get("router") if isinstance(content, dict) else None
    models = [Text(f"{each.pop('model', '')}: {_facts(each)}") for each in _models(router)]
    plans = [Text(line, style="dim") for line in _plans(router)]
    details = [*adapter_lines(rows), *transport_lines(rows), *tier_lines(rows), *pin_lines(rows), *offload_lines(rows)]
    transports = [Text(line, style="dim") for line in details]
    restarts = [Text(line, style="yellow") for report in process_reports(content) if (line := report.describe())]
    title = Text("  ".join([url, _facts(router)]), style="bold")
    return Group(title, *models, Text(), status_table(rows, width), Text(), *restarts, *plans, *transports)


def _models(router: object) -> list[dict[str, object]]:
    """Return the states of a router's models; none if it serves one, whose state is the router's."""
    models = router.get("models") if isinstance(router, dict) else None
    if not isinstance(models, list) or len(models) < 2:
        return []
    return [dict(each) for each in models if isinstance(each, dict)]


def _plans(router: object) -> Iterator[str]:
    """Yield a line for each model with an autoscaler: the sizes that it has asked for, and why."""
    models = router.get("models") if isinstance(router, dict) else None
    for model in models if isinstance(models, list) else ():
        plan = model.get("autoscaler") if isinstance(model, dict) else None
        prefill, decode = (plan.get(pool) if isinstance(plan, dict) else None for pool in ("prefill", "decode"))
        if isinstance(plan, dict) and isinstance(prefill, dict) and isinstance(decode, dict):
            sizes = f"{prefill.get('target')} prefill and {decode.get('target')} decode replicas"
            needed = f"{prefill.get('needed')} and {decode.get('needed')}"
            yield f"autoscaler: {sizes} ({needed} needed): {plan.get('reason')}"


def _facts(fields: object) -> str:
    items = fields.items() if isinstance(fields, dict) else ()
    return "  ".join(fact for name, value in items if (fact := _fact(name, value)))


def _fact(name: str, value: object) -> str:
    """Return a field as `name value`; a true flag as its name, a false one as nothing."""
    if isinstance(value, bool):
        return name if value else ""
    return f"{name} {value}" if isinstance(value, str | int | float) and value != "" else ""


def _watch(client: httpx.Client, url: str, interval_s: float) -> None:
    with Live(auto_refresh=False, screen=False) as live:
        try:
            while True:
                live.update(_snapshot(client, url, live.console.width), refresh=True)
                time.sleep(interval_s)
        except KeyboardInterrupt:
            return


def _snapshot(client: httpx.Client, url: str, width: int) -> RenderableType:
    """Return the table, or the error if the router cannot be read: it may be restarting."""
    try:
        return _render(_fetch(client), url, width)
    except (httpx.TransportError, ServerError) as error:
        return Text(f"{url}: {error}", style="red")
