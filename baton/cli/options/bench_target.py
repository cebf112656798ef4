"""Options of `baton bench` for the server and for the fields of every request."""

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
        raise SettingError(f"--header {text!r}: must be 'NAME: VALUE', like 'x-team: search'")
    return name.strip().lower(), value.strip()


def _read_key(path: Path | None) -> str | None:
    """Return the first key in the file. Default: the first in the environment."""
    if path is not None:
        lines = path.read_text().split()
        if not lines:
            raise SettingError(f"--api-key-file {path}: it is empty")
        return lines[0]
    found = next((value for name in KEY_VARIABLES if (value := os.environ.get(name))), "")
    return found.partition(",")[0].strip() or None  # the router accepts several, comma-separated


def _parse_body(text: str | None) -> Mapping[str, object]:
    try:
        fields = orjson.loads(text or "{}")
    except orjson.JSONDecodeError as error:
        raise SettingError(f"--extra-body: invalid JSON ({error})") from error
    if not isinstance(fields, dict):
        raise SettingError('--extra-body: must be a JSON object like {"top_p": 0.9}')
    return fields


target_flags = flag_group(
    "target",
    _make_target,
    url_flag,
    click.option(
        "--endpoint", "path", type=click.Choice(PATHS), default=COMPLETIONS, show_default=True, help="API endpoint."
    ),
    click.option("--model", help="Model name. Default: the first in the server's /v1/models."),
    click.option(
        "--prompts",
        type=click.Choice(list(PROMPT_FORMS)),
        default="auto",
        show_default=True,
        help="Form of the prompts for /v1/completions; auto: token ids if the server accepts them.",
    ),
    click.option(
        "--api-key-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help=f"File with the API key. Default: the environment's {' or '.join(KEY_VARIABLES)}.",
    ),
    click.option("--header", "headers", multiple=True, help="Header for every request: 'NAME: VALUE'. Repeatable."),
    click.option("--extra-body", help="JSON object of extra fields for every request; null removes a field."),
    click.option(
        "--temperature", type=click.FloatRange(0), default=0.0, show_default=True, help="Sampling temperature."
    ),
    click.option(
        "--ignore-eos/--no-ignore-eos",
        default=True,
        show_default=True,
        help="Generate the full output length (a field of vLLM, SGLang and Baton; other servers may reject it).",
    ),
    panel="Server and requests",
)
