"""vLLM switches for features that Baton has always on or does not have, and options that it has replaced."""

from collections.abc import Callable

import click

ALWAYS_ON = {
    "enable-auto-tool-choice": "the model may call tools if the router has a parser for them, see --tool-call-parser",
    "exclude-tools-when-tool-choice-none": "with tool_choice none, the tools are not in the prompt",
    "enable-chunked-prefill": "prompts are always prefilled in chunks of at most --max-num-batched-tokens per step",
}
ALWAYS_OFF = {
    "trust-remote-code": "code in a checkpoint is never run; models are implemented in Baton",
}
OVERRIDES = {"rope-scaling": "rope_scaling", "rope-theta": "rope_theta"}  # older options, now keys of --hf-overrides

Command = Callable[..., None]


def vllm_flags(command: Command) -> Command:
    """Add the switches to a click command; only the value that Baton has is accepted.

    Older options are refused with what replaces them.
    """
    for is_on, switches in ((True, ALWAYS_ON), (False, ALWAYS_OFF)):
        for name, reason in switches.items():
            command = click.option(
                f"--{name}/--no-{name}",
                default=None,
                hidden=True,
                expose_value=False,
                callback=_fixed(name, is_on, reason),
            )(command)
    for name, key in OVERRIDES.items():
        command = click.option(f"--{name}", hidden=True, expose_value=False, callback=_replaced(name, key))(command)
    return command


def _fixed(name: str, is_on: bool, reason: str) -> Callable[[click.Context, click.Parameter, bool | None], None]:
    def check(_context: click.Context, _parameter: click.Parameter, value: bool | None) -> None:
        if value is None:
            return
        if value is not is_on:
            raise click.UsageError(f"--{'no-' * (not value)}{name}: {reason}; remove the flag")
        if is_on:
            click.echo(f"--{name} is always on: {reason}", err=True)

    return check


def _replaced(name: str, key: str) -> Callable[[click.Context, click.Parameter, str | None], None]:
    def check(_context: click.Context, _parameter: click.Parameter, value: str | None) -> None:
        if value is not None:
            raise click.UsageError(f"--{name}: vLLM has replaced it; use --hf-overrides '{{\"{key}\": {value}}}'")

    return check
