"""Lists, in pages."""

import base64
from collections.abc import Mapping

from tests.helm.api_server.errors import ApiError, Json, bad_request, invalid
from tests.helm.api_server.resource_types import ResourceType
from tests.helm.api_server.selectors import selector
from tests.helm.api_server.store import Store

MOST_ITEMS = 500  # of a page


def listed(store: Store, of: ResourceType, namespace: str, query: Mapping[str, str]) -> Json:
    """One page. Raises ApiError if the query contradicts itself, or is of a page that is no more."""
    version, continuation = query.get("resourceVersion", ""), query.get("continue", "")
    if query.get("resourceVersionMatch") and (continuation or not version):
        raise invalid(of.kind, "", "resourceVersionMatch is forbidden when continue is provided")
    if continuation and version not in ("", "0"):
        raise bad_request("specifying resource version is not allowed when using continue")
    if version.isdigit() and int(version) > store.version:
        raise ApiError(504, "Timeout", f"Too large resource version: {version}, current: {store.version}")
    start, at_version = _place(continuation) if continuation else (0, store.version)
    if at_version < store.oldest_version:
        raise ApiError(410, "Expired", "The provided continue parameter is too old")
    matches = selector(query.get("labelSelector", ""), query.get("fieldSelector", ""))
    items = [each for each in store.items(of, namespace) if matches(each)]
    limit = min(int(query.get("limit") or MOST_ITEMS), MOST_ITEMS)
    metadata: Json = {"resourceVersion": str(store.version)}
    if start + limit < len(items):
        metadata["continue"] = base64.urlsafe_b64encode(f"{start + limit} {store.version}".encode()).decode()
        metadata["remainingItemCount"] = len(items) - start - limit
    page = items[start : start + limit]
    return {"kind": f"{of.kind}List", "apiVersion": of.api_version, "metadata": metadata, "items": page}


def _place(continuation: str) -> tuple[int, int]:
    """Where the next page begins, and the store's version when the first was asked for."""
    start, version = base64.urlsafe_b64decode(continuation).decode().split()
    return int(start), int(version)
