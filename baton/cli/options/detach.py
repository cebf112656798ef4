"""`--detach` of `baton serve`: the same command again in the background, as a server with a name."""

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import rich_click as click
from click import get_current_context
from rich.console import Console
from rich.text import Text

from baton.cli.options.flag_group import Command, Flags, flag_group
from baton.cli.options.lora_modules import ModulesCommand
from baton.deployment.local.cluster_config import ClusterConfig, ClusterSettings
from baton.deployment.local.detached.folder import NAME, NAME_RULE, SERVE_LOG, ServerFolder
from baton.deployment.local.detached.record import ServerRecord
from baton.deployment.local.detached.server import DetachedServer, NameInUse
from baton.deployment.local.detached.start import NameTaken, StartFailed, start_detached
from baton.settings.values import OptionError

ARGUMENTS = "baton.arguments"  # key of the command line in click's context


class DetachableCommand(ModulesCommand):
    """A command that keeps its arguments, to start itself again."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line."""
        ctx.meta[ARGUMENTS] = tuple(args)
        return super().parse_args(ctx, args)


@dataclass(frozen=True, slots=True)
class Detachment:
    """Whether a server is to be started in the background, or is one."""

    is_asked: bool
    name: str | None
    folder: ServerFolder | None  # this process is the detached server

    @property
    def is_wanted(self) -> bool:
        """Whether this process has to start the server and end."""
        return self.is_asked and self.folder is None

    def refuse(self, other: str) -> None:
        """Raise UsageError if the server is to be detached, which `other` does not allow."""
        if self.is_asked:
            raise click.UsageError(f"--detach does not work with {other}; start it as a service of systemd instead")

    @contextmanager
    def recorded(self, cluster: ClusterConfig) -> Iterator[DetachedServer | None]:
        """Hold the lock and the record of a detached server; yield None if it is not detached.

        Raises ClickException.
        """
        if self.folder is None:
            yield None
            return
        log_path = _log_dir(self.folder, cluster) / SERVE_LOG
        record = ServerRecord(cluster.port, str(log_path), time.time())
        try:
            server = DetachedServer(self.folder, record)
        except (NameInUse, OSError) as error:
            raise click.ClickException(str(error)) from error
        try:
            yield server
        finally:
            server.close()


def _detachment(flags: Flags) -> Detachment:
    name, folder = flags["name"], flags["detached_in"]
    if name is not None and not flags["detach"]:
        raise OptionError("--name needs --detach: only detached servers have names")
    if name is not None and NAME.fullmatch(name) is None:
        raise OptionError(f"--name: {name!r} is not allowed; it must be {NAME_RULE}")
    return Detachment(flags["detach"], name, None if folder is None else ServerFolder(folder))


def detach_flags(command: Command) -> Command:
    """Add --detach and its options to a click command, which receives a `Detachment`."""
    decorated: Command = flag_group(
        "detachment",
        _detachment,
        click.option("-d", "--detach", is_flag=True, help="Serve in the background, and return once it is ready."),
        click.option("--name", help="With --detach: name for `baton stop` and `baton ps`. Default: the port."),
        click.option("--detached-in", type=click.Path(path_type=Path), hidden=True),
    )(command)
    return decorated


def with_logs(settings: ClusterSettings, detachment: Detachment) -> ClusterSettings:
    """Return the settings with the directory for logs of a detached server."""
    if detachment.folder is None:
        return settings
    log_dir = str(_log_dir(detachment.folder, settings.cluster))
    return replace(settings, cluster=replace(settings.cluster, log_dir=log_dir))


def _log_dir(folder: ServerFolder, cluster: ClusterConfig) -> Path:
    return folder.log_dir if cluster.log_dir is None else Path(cluster.log_dir).expanduser().absolute()


def detach(detachment: Detachment, cluster: ClusterConfig) -> None:
    """Start the server, and print how to use it.

    Raises ClickException. If the server fails, shows its error and exits with its status.
    """
    folder = ServerFolder.named(detachment.name or str(cluster.port), os.environ)
    log_dir = _log_dir(folder, cluster)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # an interrupted start leaves no server behind
    context = get_current_context()
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        folder.make()
        log_dir.mkdir(parents=True, exist_ok=True)
        with console.status("starting") as status:
            argv = _argv(folder, context.meta[ARGUMENTS])
            log_path = log_dir / SERVE_LOG
            pid = start_detached(folder, argv, log_path, os.environ, lambda text: status.update(Text(text)))
    except StartFailed as error:
        click.ClickException(str(error)).show()
        context.exit(error.status if error.status > 0 else 1)
    except (NameTaken, OSError) as error:
        raise click.ClickException(str(error)) from error
    record = folder.record()
    if record is None:
        raise click.ClickException(f"the server has ended already; its log is {log_dir / SERVE_LOG}")
    click.echo(f"Serving {record.model} at {record.url} (process {pid})")
    click.echo(f"The log is {record.log_path}; `baton stop {folder.name}` stops the server")


def _argv(folder: ServerFolder, arguments: Sequence[str]) -> list[str]:
    # -P: do not import from the current directory, which may have a package with the same name.
    return [sys.executable, "-P", "-m", "baton", "serve", f"--detached-in={folder.path}", *arguments]
