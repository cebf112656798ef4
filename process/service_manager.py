"""Reports to a service manager, by the protocol of systemd's sd_notify(3)."""

import logging
import socket
from collections.abc import MutableMapping

logger = logging.getLogger(__name__)

VARIABLE = "NOTIFY_SOCKET"
READY = "READY=1"
STOPPING = "STOPPING=1"
STATUS = "STATUS="
SEND_TIMEOUT_S = 1.0  # of a change of state, if the manager's queue is full: Linux keeps about ten reports


class ServiceManager:
    """Sender of this process's state to the program that started it; a no-op if that does not listen."""

    def __init__(self, path: str | None) -> None:
        """`path` is that of the manager's socket; a path that starts with @ is in Linux's abstract namespace."""
        self._address = None if path is None else f"\0{path[1:]}" if path.startswith("@") else path

    @classmethod
    def take(cls, environment: MutableMapping[str, str]) -> "ServiceManager":
        """Take the socket out of the environment, so that child processes do not report as this one."""
        return cls(environment.pop(VARIABLE, None) or None)

    def ready(self, status: str) -> None:
        """Report that the service is up; `status` is one line for the user."""
        self._send(f"{READY}\n{STATUS}{_line(status)}", SEND_TIMEOUT_S)

    def status(self, status: str) -> None:
        """Report what the service is doing, as one line; dropped if the manager is behind."""
        self._send(f"{STATUS}{_line(status)}", 0.0)

    def stopping(self) -> None:
        """Report that the service is shutting down."""
        self._send(STOPPING, SEND_TIMEOUT_S)

    def _send(self, message: str, timeout_s: float) -> None:
        if self._address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(timeout_s)
                sender.sendto(message.encode(errors="replace"), self._address)
        except OSError as error:  # the manager may have ended: the service goes on
            logger.debug("cannot report %r to the service manager: %s", message, error)


def _line(text: str) -> str:
    return text.partition("\n")[0]
