"""Options for the server that a command connects to."""

from collections.abc import Callable
from typing import TypeVar

import click
import httpx

Command = TypeVar("Command", bound=Callable[..., object])


def url_flag(command: Command) -> Command:
    """Add --url to a click command; --base-url is vLLM's name for it."""
    return click.option(
        "--url",
        "--base-url",
        "url",
        default="http://127.0.0.1:8000",
        show_default=True,
        help="URL of the server.",
        callback=clean_url,
    )(command)


def key_flag(command: Command) -> Command:
    """Add --api-key to a click command."""
    return click.option(
        "--api-key",
        envvar=["BATON_API_KEY", "OPENAI_API_KEY"],
        show_envvar=True,
        help="API key, if the server requires one. Prefer the environment variable.",
    )(command)


def clean_url(_context: click.Context, _parameter: click.Parameter, url: str | None) -> str | None:
    """Return a server's URL with a scheme and without /v1. Raises BadParameter unless it is HTTP or HTTPS."""
    if url is None:
        return None
    if "://" not in url:
        url = f"http://{url}"
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise click.BadParameter(f"{url}: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise click.BadParameter(f"{url} must be a URL like http://127.0.0.1:8000")
    return url.rstrip("/").removesuffix("/v1")
