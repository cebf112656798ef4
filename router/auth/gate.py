"""Who may ask what: everything needs an API key, if there are any, but for the few paths that are open."""

from collections.abc import Mapping

from baton.router.auth.api_key import digest_of
from baton.router.auth.client import ANYBODY, Client
from baton.router.auth.key_ring import KeyRing
from baton.rpc.status import Unauthenticated

OPEN_PATHS = frozenset({"/health", "/ping", "/ready"})  # for load balancers; they tell nothing of the workers
OPERATIONS_PATHS = frozenset(
    {"/metrics", "/workers", "/pools", "/version", "/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc"}
)  # for who runs the router


class Gate:
    """Knows the clients by what they show."""

    def __init__(self, keys: KeyRing | None, protect_operations: bool = False) -> None:
        """`keys` None: everybody may ask everything."""
        self._keys = keys
        self._open_paths = OPEN_PATHS if protect_operations else OPEN_PATHS | OPERATIONS_PATHS

    def client(self, headers: Mapping[str, str]) -> Client:
        """Who shows these headers, named in lower case. Raises Unauthenticated, whose text repeats nothing of them."""
        if self._keys is None:
            return ANYBODY
        scheme, _, key = headers.get("authorization", "").strip(" \t").partition(" ")
        key = key.strip(" \t")
        if not key or scheme.lower() != "bearer":
            raise Unauthenticated("an API key is needed; send it as 'authorization: Bearer KEY'")
        # Headers are read as Latin-1, so these are the bytes that came.
        client = self._keys.find(digest_of(key.encode("latin-1", "replace")))
        if client is None:
            raise Unauthenticated("the API key is not known here, or is no longer valid")
        return client

    def is_open(self, path: str) -> bool:
        """Whether anybody may ask for a path. A path that nobody knows is not open."""
        return self._keys is None or path in self._open_paths
