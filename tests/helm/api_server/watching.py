"""What happens to the objects of one kind, from some moment on."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping

from tests.helm.api_server.errors import ApiError, Json
from tests.helm.api_server.resource_types import ResourceType
from tests.helm.api_server.selectors import Selector, selector
from tests.helm.api_server.store import Change, Store

LONGEST_S = 300.0


async def watched(store: Store, of: ResourceType, namespace: str, query: Mapping[str, str]) -> AsyncIterator[bytes]:
    """One line for each event, until the time that was asked for is over."""
    matches = selector(query.get("labelSelector", ""), query.get("fieldSelector", ""))
    version = query.get("resourceVersion", "")
    begins_with_all = version in ("", "0") or query.get("sendInitialEvents") == "true"
    if not begins_with_all and int(version) < store.oldest_version:
        gone = ApiError(410, "Expired", f"too old resource version: {version} ({store.oldest_version})")
        yield _line("ERROR", gone.status())
        return
    num_seen, at_version = len(store.changes), store.version
    if begins_with_all:
        for each in store.items(of, namespace):
            if matches(each):
                yield _line("ADDED", each)
        if query.get("sendInitialEvents") == "true":
            marks: Json = {"resourceVersion": str(at_version), "annotations": {"k8s.io/initial-events-end": "true"}}
            yield _line("BOOKMARK", {"kind": of.kind, "apiVersion": of.api_version, "metadata": marks})
    else:
        num_seen = sum(change.version <= int(version) for change in store.changes)
    end = time.monotonic() + float(query.get("timeoutSeconds") or LONGEST_S)
    while await _has_next(store, num_seen, end - time.monotonic()):
        for change in store.changes[num_seen:]:
            num_seen += 1
            if change.key.type == of and namespace in ("", change.key.namespace):
                for line in _lines(change, matches):
                    yield line


async def _has_next(store: Store, num_seen: int, timeout_s: float) -> bool:
    """False if nothing more has happened by then."""
    try:
        await asyncio.wait_for(store.next_change(num_seen), max(timeout_s, 0))
    except TimeoutError:
        return False
    return not store.ended


def _lines(change: Change, matches: Selector) -> list[bytes]:
    """At most one: what no longer matches is gone, for whoever watches."""
    before = change.before is not None and matches(change.before)
    now = change.now is not None and matches(change.now)
    if now and change.now is not None:
        return [_line("MODIFIED" if before else "ADDED", change.now)]
    if before and change.before is not None:
        last = change.now or change.before
        metadata = {**last["metadata"], "resourceVersion": str(change.version)}
        return [_line("DELETED", {**last, "metadata": metadata})]
    return []


def _line(type_: str, written: Json) -> bytes:
    return json.dumps({"type": type_, "object": written}).encode() + b"\n"
