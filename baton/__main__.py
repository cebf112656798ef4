"""The command line."""

from importlib import import_module, metadata

import rich_click as click

COMMANDS = {
    "serve": "Serve a model on this machine: router, prefill and decode workers.",
    "ps": "List the servers that run in the background.",
    "stop": "Stop a server that runs in the background.",
    "chat": "Chat with a running server in the terminal.",
    "status": "Show a running server's workers.",
    "trace": "Show where the time of a running or recent request went.",
    "logs": "Show the logs of a server on this machine.",
    "bench": "Benchmark any OpenAI-compatible server: latency, throughput and goodput.",
    "doctor": "Check this machine, or a running cluster and its links, for problems.",
    "plan": "Show how many workers the present traffic needs.",
    "drain": "Take a worker out of service without losing a request.",
    "undrain": "Put a drained worker back into service.",
    "role": "Change the role of a worker without a restart.",
    "cache": "Show, clear, export and import cached KV.",
    "worker": "Run one worker in this process.",
    "router": "Run a router: one process, or several that share its ports.",
    "rendezvous": "Run the membership service for worker groups that step together.",
    "models": "List the models and formats of weights that can be served.",
    "fetch": "Download a model into a directory.",
    "key": "Create and check API keys for clients.",
    "simulate": "Run simulated workers, or replay a trace on a simulated deployment.",
    "completion": "Print the script that completes commands and options in a shell.",
}
MAX_WIDTH = 100  # columns of help output


class Commands(click.RichGroup):
    """Commands whose module (baton/cli/<command>.py) is imported only when the command runs, so that help is fast."""

    main = click.Command.main  # print errors as one line that a script can read, not in rich's frame

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the command names, the most used first."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Import the command that the arguments name. Raises UsageError with near matches if there is none."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, import_module(f"baton.cli.{name}").command if command is not None else None, rest


@click.group(
    cls=Commands,
    commands={name: click.RichCommand(name=name, help=text) for name, text in COMMANDS.items()},
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": MAX_WIDTH,
        "rich_help_config": click.RichHelpConfiguration(
            theme="slim",
            text_markup=None,
            text_paragraph_linebreaks="\n\n",
            padding_helptext_first_line=(0, 0, 1, 0),
            append_metavars_help_string="{}",
            default_string="\\[default: {}]",
            delimiter_slash=" / ",  # with spaces, so that a line can break here
        ),
    },
)
@click.version_option(metadata.version("baton-serve"), prog_name="baton")
def main() -> None:
    """Serve large language models with prefill and decode on separate workers."""


if __name__ == "__main__":
    main(prog_name="baton")
