"""Who may do what: roles and bindings, read from the objects themselves."""

from collections.abc import Iterator
from dataclasses import dataclass

from tests.helm.api_server.errors import ApiError, Json, forbidden
from tests.helm.api_server.resource_types import ResourceType, ResourceTypes
from tests.helm.api_server.store import ObjectKey, Store

EVERYTHING = "system:masters"


@dataclass(frozen=True, slots=True)
class User:
    """Whom a token stands for."""

    name: str
    groups: frozenset[str] = frozenset()

    @classmethod
    def service_account(cls, namespace: str, name: str) -> "User":
        """As a pod has it."""
        groups = frozenset({"system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"})
        return cls(f"system:serviceaccount:{namespace}:{name}", groups)

    def is_subject(self, subject: Json) -> bool:
        """Whether a binding names this user."""
        match subject["kind"]:
            case "ServiceAccount":
                return self.name == f"system:serviceaccount:{subject['namespace']}:{subject['name']}"
            case "Group":
                return subject["name"] in self.groups
        return bool(self.name == subject["name"])


@dataclass(frozen=True, slots=True)
class Access:
    """What somebody wants to do."""

    verb: str
    type: ResourceType
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def resource(self) -> str:
        """As rules name it."""
        return f"{self.type.plural}/{self.subresource}" if self.subresource else self.type.plural

    def refused(self, user: User) -> ApiError:
        """In the API server's words."""
        where = f'in the namespace "{self.namespace}"' if self.namespace else "at the cluster scope"
        whom = f'{self.resource}{self.type.group and "."}{self.type.group} "{self.name}"'
        cannot = f'cannot {self.verb} resource "{self.resource}" in API group "{self.type.group}" {where}'
        return forbidden(f'{whom} is forbidden: User "{user.name}" {cannot}')


class Authorization:
    """Reads the rules that hold now."""

    def __init__(self, store: Store, types: ResourceTypes) -> None:
        self._store, self._types = store, types

    def check(self, user: User, access: Access) -> None:
        """Raises ApiError if none of the user's roles allows it."""
        if EVERYTHING not in user.groups and not any(_allows(each, access) for each in self._rules(user, access)):
            raise access.refused(user)

    def _rules(self, user: User, access: Access) -> Iterator[Json]:
        for kind in ("RoleBinding", "ClusterRoleBinding"):
            namespace = access.namespace if kind == "RoleBinding" else ""
            if kind == "RoleBinding" and not namespace:
                continue
            for binding in self._store.items(self._types.of_kind(kind), namespace):
                if any(user.is_subject(each) for each in binding.get("subjects") or ()):
                    yield from self._role(binding["roleRef"], namespace).get("rules") or ()

    def _role(self, reference: Json, namespace: str) -> Json:
        kind = self._types.of_kind(reference["kind"])
        key = ObjectKey(kind, namespace if kind.namespaced else "", reference["name"])
        return self._store.get(key) or {}


def _allows(rule: Json, access: Access) -> bool:
    def has(field: str, *wanted: str) -> bool:
        return bool({"*", *wanted} & set(rule.get(field) or ()))

    named = rule.get("resourceNames") or ()
    return (
        has("apiGroups", access.type.group)
        and has("resources", access.resource)
        and has("verbs", access.verb)
        and (not named or (access.name in named and access.verb not in ("create", "deletecollection")))
    )
