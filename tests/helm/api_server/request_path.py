"""What a URL's path names."""

from dataclasses import dataclass

from tests.helm.api_server.errors import no_such_path


@dataclass(frozen=True, slots=True)
class ResourcePath:
    """A collection of objects, one of them, or what hangs below it."""

    group: str
    version: str
    plural: str
    namespace: str = ""  # empty: all, or none
    name: str = ""  # empty: the collection
    subresource: str = ""

    @classmethod
    def of(cls, path: str) -> "ResourcePath":
        """Raises ApiError if it names no resource."""
        parts = path.strip("/").split("/")
        if parts[0] == "api" and len(parts) > 2:
            group, version, rest = "", parts[1], parts[2:]
        elif parts[0] == "apis" and len(parts) > 3:
            group, version, rest = parts[1], parts[2], parts[3:]
        else:
            raise no_such_path()
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2 and rest[2] != "status":
            namespace, rest = rest[1], rest[2:]
        if len(rest) > 3:
            raise no_such_path()
        return cls(group, version, rest[0], namespace, *rest[1:])
