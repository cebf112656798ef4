"""Switches of vLLM for what is always on here, or never."""

from collections.abc import Callable

import click

ALWAYS_ON = {
    "enable-chunked-prefill": "prompts are always computed in chunks, within --max-num-batched-tokens a step",
}
ALWAYS_OFF = {
    "trust-remote-code": "code that comes with a checkpoint is never run: models are part of Baton",
}

Command = Callable[..., None]


def vllm_flags(command: Command) -> Command:
    """Give a click command the switches: the one value that holds is accepted, the other one is refused."""
    for is_on, switches in ((True, ALWAYS_ON), (False, ALWAYS_OFF)):
        for name, reason in switches.items():
            command = click.option(
                f"--{name}/--no-{name}",
                default=None,
                hidden=True,
                expose_value=False,
                callback=_fixed(name, is_on, reason),
            )(command)
    return command


def _fixed(name: str, is_on: bool, reason: str) -> Callable[[click.Context, click.Parameter, bool | None], None]:
    def check(_context: click.Context, _parameter: click.Parameter, value: bool | None) -> None:
        if value is None:
            return
        if value is not is_on:
            raise click.UsageError(f"--{'no-' * (not value)}{name}: {reason}; leave it out")
        if is_on:
            click.echo(f"--{name} is always on: {reason}", err=True)

    return check
