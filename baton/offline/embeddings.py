"""Embedding requests of prompts, and their outputs."""

from dataclasses import dataclass

from baton.offline.outputs import EmbeddingOutput, EmbeddingRequestOutput
from baton.offline.prompts import Tokens
from baton.offline.requests import Answer, Request

PATH = "/v1/embeddings"


@dataclass(frozen=True, slots=True)
class Embedding:
    """Embedding of one prompt."""

    request_id: str
    prompt: Tokens
    dimensions: int | None = None  # None: all

    def request(self) -> Request:
        """Return the request."""
        return Request(PATH, {"input": self.prompt.token_ids, "dimensions": self.dimensions})

    def output(self, answer: Answer) -> EmbeddingRequestOutput:
        """Return the embedding in a response."""
        vector: list[float] = answer["data"][0]["embedding"]
        return EmbeddingRequestOutput(self.request_id, EmbeddingOutput(vector), self.prompt.token_ids, finished=True)
