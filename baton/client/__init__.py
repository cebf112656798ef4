"""HTTP transports for clients whose requests survive the failure of a router.

The life of a request:

1. `ResumingTransport` and `AsyncResumingTransport` send it, marked as resumable, through an ordinary httpx transport.
2. `event_reader` splits the response into events, and `resuming_stream` stores the position of the last event.
3. When a router fails, `outage` decides whether and when to retry, and `router_list` at which router.
4. The transport sends the request again with the position, and the response continues after the last event.
"""

from baton.client.async_transport import AsyncResumingTransport
from baton.client.transport import ResumingTransport

__all__ = ["AsyncResumingTransport", "ResumingTransport"]
