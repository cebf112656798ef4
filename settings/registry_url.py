"""Registry URLs.

redis://[[user]:password@]host[:6379][/db]                     one server
redis+sentinel://[[user]:password@]host[:26379],.../service[/db]   the master reported by Sentinels
redis+cluster://[[user]:password@]host[:6379],...              a Redis Cluster
rediss://, rediss+sentinel://, rediss+cluster://               the same over TLS
...?password_file=/path                                        the password, read again for each connection
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from baton.settings.names import host_port
from baton.settings.values import OptionError

Kind = Literal["server", "sentinel", "cluster"]

KINDS: dict[str, Kind] = {"": "server", "sentinel": "sentinel", "cluster": "cluster"}
PORTS: dict[Kind, int] = {"server": 6379, "sentinel": 26379, "cluster": 6379}
SCHEMES = tuple(f"{base}{suffix}" for suffix in ("", "+sentinel", "+cluster") for base in ("redis", "rediss"))
TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
SENTINEL_OPTIONS = ("sentinel_username", "sentinel_password")
CERT_REQS = ("required", "optional", "none")
DEFAULT_NAMESPACE = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryUrl:
    """A parsed registry URL; its text contains no passwords."""

    kind: Kind
    hosts: tuple[tuple[str, int], ...]
    tls: bool = False
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    service: str = ""  # the master's name in Sentinel
    db: int = 0
    namespace: str = DEFAULT_NAMESPACE  # separates clusters that share a Redis
    password_file: str | None = None  # instead of the password
    options: Mapping[str, str] = field(default_factory=dict, repr=False)  # of TLS and Sentinel, unparsed

    def __str__(self) -> str:
        scheme = ("rediss" if self.tls else "redis") + ("" if self.kind == "server" else f"+{self.kind}")
        hosts = ",".join(host_port(host, port) for host, port in self.hosts)
        path = "/".join(part for part in (self.service, str(self.db) if self.db else "") if part)
        query = f"?namespace={self.namespace}" if self.namespace != DEFAULT_NAMESPACE else ""
        return f"{scheme}://{hosts}{'/' + path if path else ''}{query}"


def parse_registry_url(text: str) -> RegistryUrl:
    """Return the parsed URL. Raises OptionError, whose text never contains a password."""
    try:
        parts = urlsplit(text)
        if parts.fragment or "@" in parts.path + parts.query:
            raise ValueError("unescaped character in a password")
        base, _, suffix = parts.scheme.partition("+")
        if parts.scheme not in SCHEMES:
            raise OptionError(f"a registry's URL starts with {', '.join(f'{each}://' for each in SCHEMES)}")
        kind = KINDS[suffix]
        userinfo, _, hosts = parts.netloc.rpartition("@")
        username, _, password = userinfo.partition(":")
        service, db = _path(kind, parts)
        options = _options(kind, base == "rediss", parts.query)
        if password and "password_file" in options:
            raise OptionError("set either a password or password_file, not both")
        return RegistryUrl(
            kind=kind,
            hosts=tuple(_host(each, PORTS[kind]) for each in hosts.split(",")),
            tls=base == "rediss",
            username=unquote(username) or None,
            password=unquote(password) or None,
            service=service,
            db=db,
            namespace=options.pop("namespace", DEFAULT_NAMESPACE),
            password_file=options.pop("password_file", None),
            options=options,
        )
    except OptionError as error:
        raise OptionError(f"registry: {error}") from None
    except ValueError:
        # urllib's message would repeat a part of the URL, perhaps of the password.
        raise OptionError(
            "registry: the URL cannot be read; a password's special characters must be %-escaped"
        ) from None


def _host(text: str, default_port: int) -> tuple[str, int]:
    address = urlsplit(f"//{text}")
    if not address.hostname:
        raise OptionError("the URL has no host")
    return address.hostname, address.port or default_port


def _path(kind: Kind, parts: SplitResult) -> tuple[str, int]:
    """Return the Sentinel service and the database number."""
    path = [unquote(each) for each in parts.path.split("/") if each]
    service = path.pop(0) if kind == "sentinel" and path else ""
    if kind == "sentinel" and not service:
        raise OptionError("a Sentinel URL ends with /SERVICE, the master's name")
    db = path.pop(0) if path else "0"
    if path or not db.isdecimal():
        raise OptionError("the URL's path must be a database number")
    if kind == "cluster" and int(db):
        raise OptionError("a Redis Cluster has only database 0")
    return service, int(db)


def _options(kind: Kind, tls: bool, query: str) -> dict[str, str]:
    known = (
        "namespace",
        "password_file",
        *(TLS_OPTIONS if tls else ()),
        *(SENTINEL_OPTIONS if kind == "sentinel" else ()),
    )
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name, value in options.items():
        if name not in known:
            raise OptionError(f"{name}: unknown in this URL; known are {', '.join(known)}")
        if not value or (name == "namespace" and set(value) & set("{}")):
            raise OptionError(f"{name}: must be a text" + (" without braces" if name == "namespace" else ""))
    if options.get("ssl_cert_reqs", "required") not in CERT_REQS:
        raise OptionError(f"ssl_cert_reqs: must be one of {', '.join(CERT_REQS)}")
    if options.get("ssl_check_hostname", "true") not in ("true", "false"):
        raise OptionError("ssl_check_hostname: must be one of true, false")
    return options
