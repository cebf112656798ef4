"""Tables of the headers that a router sends and reads."""

from collections.abc import Mapping

from scripts.reference.tables import code, table

RESPONSE: Mapping[str, str] = {
    "x-baton-prefill": "id of the worker that computed the prompt",
    "x-baton-decode": "id of the worker that generated the output",
    "x-baton-kv-transport": "transport of the handover: `shared_memory`, `nixl`, `tcp`, on GPUs also `nccl` and "
    "`staged_...`; empty without a handover",
    "x-baton-cached-tokens": "prompt tokens that no worker had to compute",
    "x-baton-stored-tokens": "cached tokens that were fetched from [stores](../kv_stores.md), by store: "
    "`host=256, disk=64`; absent without any",
    "x-baton-handed-over-tokens": "prompt tokens whose KV came from the prefill worker",
    "x-baton-mixed-quantization": "`FROM->TO` if workers with "
    "[other quantizations](../quantization.md#workers-with-different-quantizations) computed some of the KV",
    "x-baton-resumable": "`true`: the stream can be [resumed](../api.md#resuming-a-stream)",
    "x-baton-stored": "`false`: the [response](../api.md#stored-responses) was generated but not stored",
    "x-baton-worker-lost": "`true` with 503: workers failed while they ran the request",
}
REQUEST: Mapping[str, str] = {
    "authorization": "`Bearer KEY`: the [API key](../security.md#api-keys)",
    "x-api-key": "`KEY`: the same, as Anthropic's clients send it; ignored next to a bearer token",
    "x-request-id": "id of the request, in the response, logs and traces; without a valid one the router makes one",
    "traceparent": "with `tracestate`, the W3C context of the client's trace, which the request's continues if the "
    "router exports [traces](../tracing.md)",
    "x-baton-decode": "id of the decode worker that must serve the request",
    "x-baton-prefill": "id of the prefill worker that must compute the prompt; implies the plan `remote`",
    "x-baton-plan": "`local` or `remote`: where the prompt is computed",
    "x-baton-timeout": "seconds from the request's arrival to its last token",
    "x-baton-resumable": "`true`: the request can be [resumed](../api.md#resuming-a-stream); needs `x-request-id`",
    "x-baton-resume": "`ID; tokens=POSITION`: continue at this position",
}


def response_headers() -> str:
    """Return the table of headers of responses."""
    return _table(RESPONSE)


def request_headers() -> str:
    """Return the table of headers of requests."""
    return _table(REQUEST)


def _table(headers: Mapping[str, str]) -> str:
    return table(("header", "value"), ((code(name), text) for name, text in headers.items()))
