"""The password of a Redis URL that names a file for it."""

from pathlib import Path

from redis.credentials import CredentialProvider
from redis.exceptions import ConnectionError as RedisConnectionError


class PasswordFile(CredentialProvider):
    """Reads the password from its file for each new connection, so that it can change while the process runs."""

    def __init__(self, path: str, username: str | None) -> None:
        """Store where the password is."""
        self._path = Path(path)
        self._username = username

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Return user and password, or the password alone. Raises RedisConnectionError if the file cannot be read."""
        try:
            password = self._path.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise RedisConnectionError(f"password_file: {self._path}: {error}") from error
        return (password,) if self._username is None else (self._username, password)
