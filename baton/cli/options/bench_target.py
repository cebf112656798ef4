"""The options of `baton bench` that say which server is loaded, and what every request says."""

import os
from collections.abc import Mapping
from pathlib import Path

import click
import orjson

from baton.cli.options.flag_group import Flags, flag_group
from baton.cli.options.server import url_flag
from baton.loadtool.errors import SettingError
from baton.loadtool.target import COMPLETIONS, PATHS, Target

KEY_VARIABLES = ("OPENAI_API_KEY", "BATON_API_KEY")
PROMPT_FORMS = {"auto": None, "token-ids": True, "text": False}


def _make_target(flags: Flags) -> Target:
    headers = dict(map(_parse_header, flags["headers"]))
    key = _read_key(flags["api_key_file"])
    if key and "authorization" not in headers:
        headers["authorization"] = f"Bearer {key}"
    return Target(
        base_url=flags["url"],
        path=flags["path"],
        model=flags["model"],
        takes_token_ids=PROMPT_FORMS[flags["prompts"]],
        headers=headers,
        ignore_eos=flags["ignore_eos"],
        temperature=flags["temperature"],
        extra_body=_parse_body(flags["extra_body"]),
    )


def _parse_header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise SettingError(f"--header {text!r}: must be like 'x-team: search'")
    return name.strip().lower(), value.strip()


def _read_key(path: Path | None) -> str | None:
    """The first key of the file, or else of the environment."""
    if path is not None:
        lines = path.read_text().split()
        if not lines:
            raise SettingError(f"--api-key-file {path}: it is empty")
        return lines[0]
    found = next((value for name in KEY_VARIABLES if (value := os.environ.get(name))), "")
    return found.partition(",")[0].strip() or None  # a router takes several


def _parse_body(text: str | None) -> Mapping[str, object]:
    try:
        fields = orjson.loads(text or "{}")
    except orjson.JSONDecodeError as error:
        raise SettingError(f"--extra-body: no JSON ({error})") from error
    if not isinstance(fields, dict):
        raise SettingError('--extra-body: must be a JSON object like {"top_p": 0.9}')
    return fields


target_flags = flag_group(
    "target",
    _make_target,
    url_flag,
    click.option(
        "--endpoint", "path", type=click.Choice(PATHS), default=COMPLETIONS, show_default=True, help="The API."
    ),
    click.option("--model", help="Name of the model; by default the first that the server names."),
    click.option(
        "--prompts",
        type=click.Choice(list(PROMPT_FORMS)),
        default="auto",
        show_default=True,
        help="How prompts are sent to /v1/completions; auto: as token ids if the server takes them.",
    ),
    click.option(
        "--api-key-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help=f"File with the API key; without it {' or '.join(KEY_VARIABLES)} of the environment is taken.",
    ),
    click.option("--header", "headers", multiple=True, help="A header of every request: 'NAME: VALUE'. Repeatable."),
    click.option("--extra-body", help="JSON object of more fields for every request; null leaves one of ours out."),
    click.option("--temperature", type=click.FloatRange(0), default=0.0, show_default=True, help="Of every request."),
    click.option(
        "--ignore-eos/--no-ignore-eos",
        default=True,
        show_default=True,
        help="Have answers as long as asked for (vLLM's, SGLang's and Baton's field; others may refuse it).",
    ),
    panel="Server and requests",
)
