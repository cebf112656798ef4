"""`baton trace`: the timeline of a running or recent request."""

import json
import ssl
from urllib.parse import quote

import httpx
import rich_click as click
from rich.console import Console

from baton.cli.display.timeline_chart import timeline_chart
from baton.cli.options.https_flags import https_flags
from baton.cli.options.server import key_flag, url_flag
from baton.rpc.router_client import ServerError, check, connect, json_body, unreachable

READ_TIMEOUT_S = 10.0


@click.command(name="trace")
@click.argument("request_id")
@url_flag
@key_flag
@https_flags
@click.option(
    "--begun-at",
    type=click.FloatRange(min=0),
    metavar="TIME",
    help="Of several requests with this id, show the one that began nearest to this Unix time. Default: the last one.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the server's JSON response.")
def command(
    request_id: str,
    url: str,
    api_key: str | None,
    begun_at: float | None,
    as_json: bool,
    https: ssl.SSLContext | None,
) -> None:
    """Show where the time of a running or recent request went, at the router and at its workers.

    REQUEST_ID is the response's x-request-id. The router keeps timelines if it was started with --keep-timelines or
    --otlp-traces-endpoint.

    \b
    Examples:
    $ baton trace 7c0e1f1d3b5f4f0e9b57d0a6a2f8d9c1
    $ baton trace my-request --json
    """
    with connect(url, READ_TIMEOUT_S, api_key, https) as client:
        try:
            parameters = {} if begun_at is None else {"begun_at": begun_at}
            response = client.get(f"/timelines/{quote(request_id, safe='')}", params=parameters)
            check(response)
            content = json_body(response)
            if as_json:
                click.echo(json.dumps(content, indent=2))
                return
            console = Console(highlight=False, soft_wrap=True)
            console.print(timeline_chart(content, console.width))
        except httpx.TransportError as error:
            raise unreachable(url, error) from error
        except (ServerError, ValueError) as error:
            raise click.ClickException(f"{url}: {error}") from error
