"""Several router processes that share one port.

1. The parent binds the ports without listening, so that they stay reserved while processes restart.
2. Each process listens on them (SO_REUSEPORT) once it is ready; the kernel distributes the connections.
3. A process that dies is restarted, without limit once all have been ready; only its own connections are lost. One that
   sends no heartbeats is killed, because the kernel would still give it connections, which would time out.
4. At shutdown all processes drain at the same time. No process and no temporary directory is left behind.
"""

import asyncio
import logging
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from baton.deployment.local.events import Died, Event, Progressed, Started, Warned
from baton.deployment.local.ports import check_port
from baton.deployment.local.process_states import STATES_FILE, StatesWriter
from baton.deployment.local.supervisor import GaveUp, RestartPolicy, Supervisor, end_all
from baton.process.child import ProcessSpec
from baton.process.log_settings import LogSettings
from baton.process.progress import ProgressReporter, Ready
from baton.router.auth.cache_secret import new_cache_secret
from baton.router.config import RouterConfig
from baton.router.http.shared_socket import shared_socket
from baton.router.secrets import without_secrets
from baton.rpc.unix_sockets import socket_parent
from baton.settings.flags import flags_of
from baton.settings.names import host_port

logger = logging.getLogger(__name__)

END_MARGIN_S = 5.0  # after the drain timeout, until processes are killed
POLICY = RestartPolicy(max_early_deaths=10, max_deaths=10)  # the other processes serve in the meantime


class RouterGroupFailed(OSError):
    """A process of the group failed to start."""


class RouterGroup:
    """Owner of the router processes. None of them outlives `run`, even if it raises."""

    def __init__(
        self, specs: list[ProcessSpec], end_timeout_s: float, states: StatesWriter, ready: Callable[[], None]
    ) -> None:
        """Start nothing yet. `ready` is called once, when every process has been ready; `states` is read by them."""
        self._supervisors = [Supervisor(spec, POLICY, self._handle) for spec in specs]
        self._loading = {spec.name for spec in specs}  # never ready so far
        self._end_timeout_s = end_timeout_s
        self._states = states
        self._ready = ready

    async def run(self, stop: asyncio.Event, kill: asyncio.Event) -> None:
        """Serve until `stop` is set; `kill` skips draining. Raises RouterGroupFailed if a process fails to start."""
        lives = [asyncio.create_task(supervisor.run()) for supervisor in self._supervisors]
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([*lives, stopped], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            await end_all([self._supervisors], self._end_timeout_s, kill)
            outcomes = await asyncio.gather(*lives, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, GaveUp):
                raise RouterGroupFailed(str(outcome)) from outcome
            if isinstance(outcome, BaseException):
                raise outcome

    def _handle(self, event: Event) -> None:
        self._states.update(event)
        match event:
            case Started(name, life, pid):
                logger.info("%s was started (life %d, process %d)", name, life, pid)
            case Warned(name, message):
                logger.warning("%s: %s", name, message)
            case Died(name, reason, restart_in_s):
                logger.warning("%s: %s; restarting in %.1f s", name, reason, restart_in_s)
            case Progressed(name, Ready()) if name in self._loading:
                self._loading.discard(name)
                if not self._loading:
                    for supervisor in self._supervisors:
                        supervisor.persist()
                    self._ready()


async def run_group(config: RouterConfig, log: LogSettings) -> None:
    """Run `config.processes` router processes until SIGTERM or SIGINT; a second signal kills them.

    Raises PortInUse, OSError, or RouterGroupFailed with the error of the process.
    """
    stop, kill = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, lambda: (kill if stop.is_set() else stop).set())
    with ExitStack() as stack:
        port = _hold_port(stack, config.host, config.port)
        grpc_port = None if config.grpc_port is None else _hold_port(stack, config.host, config.grpc_port)
        directory = stack.enter_context(
            TemporaryDirectory(prefix="baton-router-", dir=socket_parent(), ignore_cleanup_errors=True)
        )
        states_path = Path(directory) / STATES_FILE
        shared = replace(
            config,
            port=port,
            grpc_port=grpc_port,
            group_dir=directory,
            process=0,
            process_states=(*config.process_states, str(states_path)),
            progress_fd=None,
        )
        if config.registry is None and config.cache_secret is None:  # the processes must share one
            shared = replace(shared, cache_secret=new_cache_secret())
        specs = [_spec(replace(shared, process=number), log) for number in range(config.processes)]
        states = StatesWriter(states_path, [spec.name for spec in specs])
        stack.callback(states.close)

        def ready() -> None:
            address = host_port(config.host, port)
            grpc_address = None if grpc_port is None else host_port(config.host, grpc_port)
            ProgressReporter(config.progress_fd).ready(address=address, grpc_address=grpc_address)
            url = f"{config.scheme}://{address}"
            names = ", ".join(each.name for each in config.models)
            logger.info("%d router processes serve %s at %s", len(specs), names, url)

        await RouterGroup(specs, config.drain_timeout_s + END_MARGIN_S, states, ready).run(stop, kill)


def _hold_port(stack: ExitStack, host: str, port: int) -> int:
    """Reserve the port (0: a free one) until the stack is closed, and return it."""
    if port:
        check_port(host, port)  # with SO_REUSEPORT, a socket would silently join another router group
    held: int = stack.enter_context(shared_socket(host, port)).getsockname()[1]
    return held


def _spec(config: RouterConfig, log: LogSettings) -> ProcessSpec:
    config, secrets = without_secrets(config)
    # -P: do not import from the current directory, which may have a package with the same name.
    argv = (sys.executable, "-P", "-m", "baton.router", *log.flags, *flags_of(config))
    name, env = f"router-{config.process}", {"PYTHONUNBUFFERED": "1", **secrets}
    directory = None if config.group_dir is None else Path(config.group_dir)
    return ProcessSpec(name, argv, None, env, private_dir=directory, heartbeat_timeout_s=config.heartbeat_timeout_s)
