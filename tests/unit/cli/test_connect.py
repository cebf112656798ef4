"""Connections of commands to a server."""

import socket
import ssl
import threading
from pathlib import Path

import click
import httpx
import pytest
import trustme
from click.testing import CliRunner

from baton.__main__ import main
from baton.rpc.router_client import connect


@pytest.mark.parametrize("scheme", ["https", "HTTPS", "Https"])
def test_an_untrusted_server_receives_no_key(tmp_path: Path, scheme: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hear() -> None:
            connection, _ = listener.accept()
            try:
                with context.wrap_socket(connection, server_side=True) as tls:
                    received.append(tls.recv(1 << 16))
            except OSError:
                connection.close()

        thread = threading.Thread(target=hear)
        thread.start()
        url = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
        untrusted = pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED")
        with connect(url, 5.0, "sk-secret") as client, untrusted:
            client.get("/health")
        thread.join()
    assert b"sk-secret" not in b"".join(received)


def test_certificates_for_an_http_url_are_refused() -> None:
    with pytest.raises(click.UsageError, match="nothing would be encrypted"):
        connect("http://127.0.0.1:1", 1.0, https=ssl.create_default_context())


@pytest.mark.parametrize("command", ["status", "chat", "drain", "undrain", "doctor", "bench"])
@pytest.mark.parametrize("url", ["ftp://127.0.0.1", "http://[::1", "http://127.0.0.1:port", "http://"])
def test_an_invalid_url_is_refused(command: str, url: str) -> None:
    worker = ["decode-0"] if "drain" in command else []
    result = CliRunner().invoke(main, [command, *worker, "--url", url])
    assert result.exit_code == 2
    assert f"Invalid value for '--url' / '--base-url': {url}" in result.output
