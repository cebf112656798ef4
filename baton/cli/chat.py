"""`baton chat`: a conversation in the terminal."""

import importlib
import ssl
import sys

import httpx
import rich_click as click
from rich.console import Console
from rich.text import Text

from baton.cli.display.chat_stream import Message, ask
from baton.cli.options.https_flags import https_flags
from baton.cli.options.model_argument import model_argument
from baton.cli.options.server import key_flag, url_flag
from baton.rpc.router_client import ServerError, check, connect, json_body, unreachable

HELP = "/clear starts a new conversation, /exit quits, Ctrl-C stops a response."


class Conversation:
    """Messages so far, and the client that requests the next one."""

    def __init__(self, client: httpx.Client, model: str, system: str | None, options: dict[str, float | int]) -> None:
        self._client = client
        self._model = model
        self._start = [Message("system", system)] if system else []
        self._options = options
        self._messages = list(self._start)

    def clear(self) -> None:
        """Remove all messages except the system message."""
        self._messages = list(self._start)

    def say(self, text: str, console: Console, verbose: bool) -> None:
        """Send a user message and print the response as it streams. Ctrl-C stops it and keeps the partial response.

        Raises ServerError or httpx.TransportError; the conversation is then unchanged.
        """
        messages = [*self._messages, Message("user", text)]
        pieces: list[str] = []
        note = ""
        try:
            with ask(self._client, self._model, messages, self._options) as answer:
                for piece in answer.text():
                    pieces.append(piece)
                    console.out(piece, end="", highlight=False)
                note = answer.how_served() if verbose else ""
        except KeyboardInterrupt:
            note = "stopped"
        console.print()
        if note:
            console.print(Text(f"({note})", style="dim"))
        self._messages = [*messages, Message("assistant", "".join(pieces))]


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
@click.option("--verbose", is_flag=True, help="Print which workers served each response, and token counts.")
def command(
    url: str,
    api_key: str | None,
    model: str | None,
    system: str | None,
    verbose: bool,
    https: ssl.SSLContext | None,
    **options: float | int | None,
) -> None:
    """Chat with a running server in the terminal.

    MODEL is the model's name. Default: the first in the server's /v1/models.

    \b
    Examples:
    $ baton chat
    $ baton chat --url https://llm.example.com --system "Answer in one sentence."
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
        conversation.say(text, console, verbose)
    except (ServerError, httpx.TransportError) as error:
        if not interactive:
            raise
        console.print(Text(str(error) or type(error).__name__, style="red"))
