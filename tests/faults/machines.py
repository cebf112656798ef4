"""Machines emulated by network namespaces, whose network cables can be unplugged."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Machine:
    """A network namespace and its cable (a veth pair) to the bridge."""

    namespace: str
    host: str  # IP address
    cable: str  # the interface at the bridge

    @property
    def launcher(self) -> tuple[str, ...]:
        """Command-line prefix that runs a command on this machine."""
        return ("ip", "netns", "exec", self.namespace)

    def unplug(self) -> None:
        """Drop all packets from now on, silently."""
        _ip("link", "set", self.cable, "down")

    def plug(self) -> None:
        """Reconnect the cable."""
        _ip("link", "set", self.cable, "up")


def why_no_machines() -> str | None:
    """Return why this process cannot create namespaces; None if it can."""
    try:
        with machines(1):
            return None
    except FileNotFoundError:
        return "there is no `ip` command"
    except subprocess.CalledProcessError as error:
        return f"`{' '.join(error.cmd)}`: {error.stderr.decode().strip()}"


@contextmanager
def machines(count: int) -> Iterator[Sequence[Machine]]:
    """Create `count` machines on a network with this one. Raises CalledProcessError without the privileges."""
    name = f"bt{os.getpid()}"
    network = f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250}"
    with ExitStack() as stack:
        bridge = f"{name}b"
        _ip("link", "add", bridge, "type", "bridge")
        stack.callback(_ip, "link", "del", bridge)
        _ip("addr", "add", f"{network}.1/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        made = []
        for number in range(count):
            machine = Machine(f"baton-{name}-{number}", f"{network}.{number + 2}", f"{name}v{number}")
            _ip("netns", "add", machine.namespace)
            stack.callback(_ip, "netns", "del", machine.namespace)  # removes the cable too
            _ip("link", "add", machine.cable, "type", "veth", "peer", "eth0", "netns", machine.namespace)
            _ip("link", "set", machine.cable, "master", bridge, "up")
            for command in (("addr", "add", f"{machine.host}/24", "dev", "eth0"), ("link", "set", "eth0", "up"),
                            ("link", "set", "lo", "up")):  # fmt: skip
                _ip("-n", machine.namespace, *command)
            made.append(machine)
        yield made


def _ip(*arguments: str) -> None:
    subprocess.run(("ip", *arguments), check=True, capture_output=True)
