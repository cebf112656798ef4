"""--lora-modules with several values, as in vLLM: `--lora-modules sql=/adapters/sql chat=/adapters/chat`."""

from collections.abc import Sequence

import click
from rich_click import RichCommand

FLAG = "--lora-modules"


class ModulesCommand(RichCommand):
    """A command whose --lora-modules takes all values that follow it, and may be repeated."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line."""
        return super().parse_args(ctx, joined_modules(args))


def joined_modules(args: Sequence[str]) -> list[str]:
    """Return the arguments with all adapters in one flag, separated by commas."""
    kept, modules, is_module = list[str](), list[str](), False
    for place, arg in enumerate(args):
        if arg == "--":
            kept += args[place:]
            break
        name, equals, value = arg.partition("=")
        if name == FLAG:
            is_module = True
            modules += [value] if equals else []
        elif is_module and _is_module(arg):
            modules.append(arg)
        else:
            is_module = False
            kept.append(arg)
    if any(arg.partition("=")[0] == FLAG for arg in args):
        kept.insert(0, f"{FLAG}={','.join(modules)}")
    return kept


def _is_module(arg: str) -> bool:
    return arg.startswith("{") or ("=" in arg and not arg.startswith("-"))
