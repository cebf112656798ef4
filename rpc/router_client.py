"""HTTP client of a running server's operational endpoints."""

import ssl

import click
import httpx

CONNECT_TIMEOUT_S = 5.0


class ServerError(Exception):
    """The server answered with an error; the text is its own."""


def connect(
    url: str, read_timeout_s: float | None, api_key: str | None = None, https: ssl.SSLContext | None = None
) -> httpx.Client:
    """A client for the server at `url`; proxies of the environment are not used for it.

    Of several keys with commas between, as a router takes them, it shows the first. Without `https` a server at an
    https:// URL needs a certificate that the system trusts. Raises UsageError for `https` at an http:// URL.
    """
    is_plain = httpx.URL(url).scheme == "http"
    if is_plain and https is not None:
        raise click.UsageError(f"certificates are for https:// URLs: at {url} nothing would be encrypted")
    if https is None and not is_plain:
        https = ssl.create_default_context()
    timeout = httpx.Timeout(read_timeout_s, connect=CONNECT_TIMEOUT_S)
    headers = {"authorization": f"Bearer {api_key.partition(',')[0].strip()}"} if api_key else {}
    return httpx.Client(base_url=url, timeout=timeout, headers=headers, trust_env=False, verify=https or False)


def unreachable(url: str, error: httpx.TransportError) -> click.ClickException:
    """What to tell a user when nobody answers, or one whose certificate is not trusted."""
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return click.ClickException(f"{url}: {error}; name who signed its certificate by --ssl-ca-certs")
    return click.ClickException(f"no server answers at {url} ({error}); start one with `baton serve`, or set --url")


def check(response: httpx.Response) -> None:
    """Raises ServerError with the server's own words (OpenAI's error shape, or else its text) unless all is well."""
    if response.is_success:
        return
    response.read()
    try:
        content = response.json()
    except ValueError:
        content = None
    match content:
        case {"error": {"message": str() as message}} | {"message": str() as message} | {"detail": str() as message}:
            pass
        case _:
            message = response.text[:500].strip() or response.reason_phrase
    raise ServerError(f"{response.status_code}: {message}")
