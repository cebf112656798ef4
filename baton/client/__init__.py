"""HTTP transports for clients whose requests survive the loss of a router.

The life of a request:

1. `ResumingTransport` and `AsyncResumingTransport` send it, marked as resumable, through an ordinary httpx transport.
2. `event_reader` cuts the response into events, and `resuming_stream` remembers the position that the last one had.
3. A router is lost: `outage` decides whether and when to go on, and `router_list` at which router.
4. The transport sends the request again with the position, and the response goes on behind the last event.
"""

from baton.client.async_transport import AsyncResumingTransport
from baton.client.transport import ResumingTransport

__all__ = ["AsyncResumingTransport", "ResumingTransport"]
