"""`baton completion`: the script with which a shell completes commands, options and their values."""

import os
from pathlib import Path

import rich_click as click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")
PROGRAM = "baton"
VARIABLE = "_BATON_COMPLETE"  # click's name for a program `baton`


@click.command(name="completion")
@click.argument("shell", type=click.Choice(SHELLS), required=False)
@click.pass_context
def command(context: click.Context, shell: str | None) -> None:
    """Print the completion script for SHELL: bash (from 4.4), zsh or fish. Default: the one in $SHELL.

    The script calls `baton` for each completion.

    \b
    Examples:
    $ source <(baton completion bash)
    $ baton completion bash > ~/.local/share/bash-completion/completions/baton
    $ baton completion zsh > "${fpath[1]}/_baton"
    $ baton completion fish > ~/.config/fish/completions/baton.fish
    """
    name = shell or Path(os.environ.get("SHELL", "")).name
    if name not in SHELLS:
        raise click.UsageError(f"SHELL: {name or 'none'} is not supported; it must be one of {', '.join(SHELLS)}")
    kind = get_completion_class(name)
    assert kind is not None  # click has all of SHELLS
    click.echo(kind(context.find_root().command, {}, PROGRAM, VARIABLE).source(), nl=False)
