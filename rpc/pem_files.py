"""Certificates, keys and authorities from PEM files, with errors that name the file."""

import ssl
from pathlib import Path


def load_pair(context: ssl.SSLContext, cert: str, key: str) -> None:
    """Loads a certificate and its key. Raises OSError for files that cannot be read or do not go together."""
    for path in (cert, key):
        Path(path).open("rb").close()  # OpenSSL would not say which one it cannot open

    def no_password() -> str:
        raise OSError(f"{key} is encrypted; a server needs a key that it can read by itself")

    try:
        context.load_cert_chain(cert, key, no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise OSError(f"the key in {key} is not that of the certificate in {cert}: {error.reason}") from error
        raise OSError(f"{cert} and {key} are no certificate and its key in PEM: {error}") from error


def load_authorities(context: ssl.SSLContext, path: str) -> None:
    """Loads the authorities whose certificates are taken. Raises OSError for a file that has none."""
    Path(path).open("rb").close()
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise OSError(f"{path} has no authority's certificate in PEM: {error}") from error
