"""The command line."""

from importlib import import_module, metadata

import click

COMMANDS = {
    "serve": "Serve a model on this machine: router, prefill and decode workers.",
    "chat": "Chat with a running server in the terminal.",
    "status": "Show a running server's workers.",
    "bench": "Load a server, ours or another, and measure what its users would see.",
    "doctor": "Measure whether this machine and a running cluster are as serving needs them.",
    "drain": "Take a worker out of service without losing a request.",
    "undrain": "Put a drained worker back into service.",
    "worker": "Run one worker in this process.",
    "router": "Run a router: one process, or several that share its ports.",
    "rendezvous": "Know who is in which group of workers, and tell them.",
    "fetch": "Put a model into a directory.",
    "key": "Make API keys for clients.",
    "simulate": "Run simulated workers, or the twin of a whole deployment under a trace.",
}


class Commands(click.Group):
    """Imports a command's module (baton/<command>.py) when the command is run, so that help comes at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands, the most used first."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name; None if there is none."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"baton.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the commands with what they do, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(metadata.version("baton-serve"), prog_name="baton")
def main() -> None:
    """Baton serves large language models with prefill and decode on separate workers."""


if __name__ == "__main__":
    main(prog_name="baton")
