"""Body of a request for a batch."""

import re
from typing import Annotated, Literal

from pydantic import Field

from baton.router.limits import MAX_METADATA
from baton.router.openai.ignored_fields import MetadataName, MetadataValue
from baton.router.openai.request_body import WHOLE, AtMost, RequestBody

Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]
WINDOW = r"^[1-9][0-9]{0,5}[smhd]$"
WINDOW_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MAX_WINDOW_S = 30 * 86400


class ExpiresAfter(RequestBody):
    """When the files of a batch are deleted."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=3600, le=2592000), WHOLE]


class BatchRequest(RequestBody):
    """Requests in a file, to be run behind all others."""

    input_file_id: Annotated[str, Field(max_length=64)]
    endpoint: Endpoint
    completion_window: Annotated[str, Field(pattern=WINDOW)]
    metadata: Annotated[dict[MetadataName, MetadataValue], AtMost(MAX_METADATA)] | None = None
    output_expires_after: ExpiresAfter | None = None

    def window_s(self) -> int:
        """Return the seconds until the batch expires, at most `MAX_WINDOW_S`."""
        assert re.match(WINDOW, self.completion_window)
        return min(MAX_WINDOW_S, int(self.completion_window[:-1]) * WINDOW_S[self.completion_window[-1]])
