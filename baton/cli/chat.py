"""`baton chat`: a conversation in the terminal."""

import importlib
import json
import ssl
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import httpx
import rich_click as click
from rich.console import Console
from rich.text import Text

from baton.cli.display.chat_stream import Answer, Message, ask
from baton.cli.options.https_flags import https_flags
from baton.cli.options.model_argument import model_argument
from baton.cli.options.server import key_flag, url_flag
from baton.rpc.router_client import ServerError, check, connect, json_body, unreachable

HELP = "/clear starts a new conversation, /exit quits, Ctrl-C stops a response."


STYLES = {"reasoning": "dim", "content": ""}  # by kind of part
CALL_STYLE = "cyan"


class Conversation:
    """Messages so far, and the client that requests the next one."""

    def __init__(self, client: httpx.Client, model: str, system: str | None, options: Mapping[str, object]) -> None:
        self._client = client
        self._model = model
        self._start: list[Message] = [{"role": "system", "content": system}] if system else []
        self._options = options
        self._messages = list(self._start)

    def clear(self) -> None:
        """Remove all messages except the system message."""
        self._messages = list(self._start)

    def say(self, text: str, console: Console, verbose: bool, result_of: Callable[[str], str]) -> None:
        """Send a user message and print the responses as they stream. Ctrl-C stops one and keeps its partial content.

        `result_of` returns the result of a call, given the tool's name; it may raise KeyboardInterrupt or EOFError.
        Raises ServerError or httpx.TransportError; the conversation is then unchanged.
        """
        messages = [*self._messages, {"role": "user", "content": text}]
        while True:
            answer = self._answer(messages, console, verbose)
            messages.append(answer.message())
            if not answer.calls:
                break
            messages += [
                {"role": "tool", "tool_call_id": call.call_id, "content": result_of(call.name)}
                for call in answer.calls.values()
            ]
        self._messages = messages

    def _answer(self, messages: Sequence[Message], console: Console, verbose: bool) -> Answer:
        """Request the next message and print it."""
        note = last = ""
        answer = Answer({}, iter(()))
        try:
            with ask(self._client, self._model, messages, self._options) as answer:
                for part in answer.parts():
                    if last not in ("", part.kind):
                        console.print()
                    last = part.kind
                    console.out(part.text, end="", highlight=False, style=STYLES.get(part.kind, CALL_STYLE))
                note = answer.how_served() if verbose else ""
        except KeyboardInterrupt:
            note = "stopped"
            answer.calls.clear()
        console.print()
        if note:
            console.print(Text(f"({note})", style="dim"))
        return answer


def _read_tools(_context: click.Context, _option: click.Parameter, path: Path | None) -> list[object] | None:
    """Return the tools in a file."""
    if path is None:
        return None
    try:
        tools = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise click.BadParameter(f"{path} is not a JSON file: {error}") from error
    if not isinstance(tools, list):
        raise click.BadParameter(f"{path} must have a list of tools, as in the API's field of that name")
    return tools


@click.command(name="chat")
@url_flag
@key_flag
@https_flags
@model_argument
@click.option("--model", help="Model name. Default: the first in the server's /v1/models.")
@click.option("--system", help="System message.")
@click.option("--temperature", type=click.FloatRange(0, 2), help="Sampling temperature; 0 is greedy.")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), help="Nucleus sampling: cumulative probability.")
@click.option("--max-tokens", type=click.IntRange(1), help="Maximum output tokens.")
@click.option("--seed", type=click.IntRange(0), help="Random seed for sampling.")
@click.option(
    "--tools",
    type=click.Path(path_type=Path),
    callback=_read_tools,
    help="JSON file with tools, in the API's form. The results of calls are asked for.",
)
@click.option("--verbose", is_flag=True, help="Print which workers served each response, and token counts.")
def command(
    url: str,
    api_key: str | None,
    model: str | None,
    system: str | None,
    verbose: bool,
    https: ssl.SSLContext | None,
    **options: object,
) -> None:
    """Chat with a running server in the terminal.

    MODEL is the model's name. Default: the first in the server's /v1/models.

    \b
    Examples:
    $ baton chat
    $ baton chat --url https://llm.example.com --system "Answer in one sentence."
    $ baton chat --tools tools.json
    """
    console = Console(soft_wrap=True)
    given = {name: value for name, value in options.items() if value is not None}
    with connect(url, read_timeout_s=None, api_key=api_key, https=https) as client:
        try:
            conversation = Conversation(client, model or _first_model(client), system, given)
            _talk(conversation, console, verbose)
        except httpx.TransportError as error:
            raise unreachable(url, error) from error
        except ServerError as error:
            raise click.ClickException(str(error)) from error


def _first_model(client: httpx.Client) -> str:
    response = client.get("/v1/models")
    check(response)
    match json_body(response):
        case {"data": [{"id": str() as name}, *_]}:
            return name
    raise ServerError("the server lists no models")


def _talk(conversation: Conversation, console: Console, verbose: bool) -> None:
    interactive = sys.stdin.isatty()
    if interactive:
        importlib.import_module("readline")  # gives input() line editing and history
        console.print(Text(HELP, style="dim"))
    while True:
        try:
            text = input("> " if interactive else "").strip()
        except EOFError:
            console.print()
            return
        except KeyboardInterrupt:  # aimed at a response that has just ended, or at the input line
            console.print(Text("\n/exit or Ctrl-D quits.", style="dim"))
            continue
        if text in ("/exit", "/quit"):
            return
        if text == "/clear":
            conversation.clear()
        elif text.startswith("/"):
            console.print(Text(HELP, style="dim"))
        elif text:
            _say(conversation, text, console, verbose, interactive)


def _say(conversation: Conversation, text: str, console: Console, verbose: bool, interactive: bool) -> None:
    try:
        conversation.say(text, console, verbose, lambda name: input(f"{name}> " if interactive else ""))
    except (KeyboardInterrupt, EOFError):  # instead of a call's result: the message is withdrawn
        console.print()
    except (ServerError, httpx.TransportError) as error:
        if not interactive:
            raise
        console.print(Text(str(error) or type(error).__name__, style="red"))
