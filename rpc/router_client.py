"""HTTP client of a running server's operational endpoints."""

import ssl

import click
import httpx

CONNECT_TIMEOUT_S = 5.0
MAX_ERROR_CHARS = 500


class ServerError(Exception):
    """An error response, with the server's text, or a response without the expected content."""


def connect(
    url: str, read_timeout_s: float | None, api_key: str | None = None, https: ssl.SSLContext | None = None
) -> httpx.Client:
    """Return a client for the server at `url`, which ignores proxies from the environment.

    api_key: may be a comma-separated list, as for a router; the first key is sent. https: default for https:// URLs
    is the system's trust store. Raises UsageError if it is given for an http:// URL.
    """
    is_plain = httpx.URL(url).scheme == "http"
    if is_plain and https is not None:
        raise click.UsageError(f"certificates require an https:// URL: with {url} nothing would be encrypted")
    if https is None and not is_plain:
        https = ssl.create_default_context()
    timeout = httpx.Timeout(read_timeout_s, connect=CONNECT_TIMEOUT_S)
    headers = {"authorization": f"Bearer {api_key.partition(',')[0].strip()}"} if api_key else {}
    return httpx.Client(base_url=url, timeout=timeout, headers=headers, trust_env=False, verify=https or False)


def unreachable(url: str, error: httpx.TransportError) -> click.ClickException:
    """Return the error for a server that does not respond, or whose certificate is not trusted."""
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return click.ClickException(f"{url}: {error}; pass the authority that signed its certificate by --ssl-ca-certs")
    return click.ClickException(f"no server answers at {url} ({error}); start one with `baton serve`, or set --url")


def json_body(response: httpx.Response) -> object:
    """Return the JSON value in a response. Raises ServerError if it has none, or one that is nested too deeply."""
    try:
        value: object = response.json()
    except (ValueError, RecursionError) as error:
        raise ServerError(f"the response is not JSON: {response.text[:MAX_ERROR_CHARS]!r}") from error
    return value


def check(response: httpx.Response) -> None:
    """Raise ServerError for an error status, with the message of OpenAI's error shape or else the response's text."""
    if response.is_success:
        return
    response.read()
    try:
        content = json_body(response)
    except ServerError:
        content = None
    match content:
        case {"error": {"message": str() as message}} | {"message": str() as message} | {"detail": str() as message}:
            pass
        case _:
            message = response.text[:MAX_ERROR_CHARS].strip() or response.reason_phrase
    raise ServerError(f"{response.status_code}: {message}")
