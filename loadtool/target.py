"""Server under load, and the fields that all requests have in common."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import orjson

from baton.loadtool.errors import SettingError
from baton.loadtool.request import LoadRequest
from baton.loadtool.vocabulary import Vocabulary

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PATHS = (COMPLETIONS, CHAT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server, and the common fields of all requests."""

    base_url: str  # scheme://host[:port], optionally with a path in front of /v1
    path: str = COMPLETIONS
    model: str | None = None  # None: the first in the server's /v1/models
    takes_token_ids: bool | None = None  # as prompts; None: probed
    headers: Mapping[str, str] | None = None
    ignore_eos: bool = True
    temperature: float = 0.0
    extra_body: Mapping[str, object] | None = None  # extra or overriding fields; null removes a field
    https: ssl.SSLContext | None = None  # TLS context for an https:// server; None: the system's CA certificates

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.base_url)
            is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_url = False
        if not is_url:
            raise SettingError(f"--url {self.base_url}: must be a URL like http://127.0.0.1:8000")
        for name, value in (self.headers or {}).items():
            if not (name.isascii() and name.isprintable() and value.isprintable() and value.isascii()):
                raise SettingError(f"the header {name!r} has invalid characters")

    @property
    def is_chat(self) -> bool:
        """Whether requests are chat completions."""
        return self.path == CHAT

    @property
    def host(self) -> str:
        """Host name without the port."""
        return urlsplit(self.base_url).hostname or ""

    @property
    def port(self) -> int:
        """Port of the URL, or the scheme's default."""
        return urlsplit(self.base_url).port or (443 if self.is_tls else 80)

    @property
    def is_tls(self) -> bool:
        """Whether connections are encrypted."""
        return urlsplit(self.base_url).scheme == "https"

    def tls(self) -> ssl.SSLContext | None:
        """TLS context; None: the connection is not encrypted."""
        return (self.https or ssl.create_default_context()) if self.is_tls else None

    def body(self, request: LoadRequest, vocabulary: Vocabulary) -> bytes:
        """Return a request's JSON body. Raises SettingError if its prompt must be text and there is no tokenizer."""
        prompt = request.prompt
        if not isinstance(prompt, str) and (self.is_chat or not self.takes_token_ids):
            prompt = vocabulary.text(prompt)
        fields: dict[str, object] = {
            "model": self.model,
            **({"messages": [{"role": "user", "content": prompt}]} if self.is_chat else {"prompt": prompt}),
            "max_tokens": request.num_output_tokens,
            "temperature": self.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"ignore_eos": True} if self.ignore_eos else {}),
            **(self.extra_body or {}),
        }
        whole = {name: value for name, value in fields.items() if value is not None}
        return orjson.dumps(whole, option=orjson.OPT_SERIALIZE_NUMPY)

    def payload(self, body: bytes) -> bytes:
        """Return the bytes of an HTTP request with this body."""
        parts = urlsplit(self.base_url)
        head = {
            "host": parts.netloc.rpartition("@")[2],
            "content-type": "application/json",
            "accept": "text/event-stream",
            **(self.headers or {}),
            "content-length": str(len(body)),
        }
        lines = [f"POST {parts.path}{self.path} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items())]
        return "\r\n".join(lines).encode("ascii") + b"\r\n\r\n" + body
