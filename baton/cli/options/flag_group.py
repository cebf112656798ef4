"""Groups of options that a command receives as one object."""

import functools
from collections.abc import Callable
from typing import Any

import rich_click as click

from baton.loadtool.errors import LoadToolError
from baton.settings.values import OptionError

Command = Callable[..., None]
Flags = dict[str, Any]


def flag_group(
    name: str, make: Callable[[Flags], object], *options: Callable[[Command], Command], panel: str | None = None
) -> Callable[..., Any]:
    """Add options to a command, in a panel of its help if it is named; the command receives `make(flags)` as `name`.

    Errors that `make` raises for wrong values or files become usage errors.
    """
    given = [option(lambda: None) for option in options]  # only to learn the parameter names that click uses
    names = [parameter.name for each in given for parameter in each.__click_params__]  # type: ignore[attr-defined]  # click's

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapped(**flags: Any) -> None:
            own = {each: flags.pop(each) for each in names}
            try:
                made = make(own)
            except (LoadToolError, OptionError, OSError) as error:
                raise click.UsageError(str(error)) from error
            command(**flags, **{name: made})

        decorated: Command = wrapped
        for option in reversed(options):
            decorated = option(decorated)
        return decorated if panel is None else click.option_panel(panel, options=list(names))(decorated)

    return decorate
