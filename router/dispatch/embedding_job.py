"""A request for embeddings, and the batches into which its inputs are divided."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc

from baton.engine.pooling.config import PoolingParams
from baton.protos.worker_pb2 import EmbedInput, EmbedRequest
from baton.router.dispatch.retries import Losses
from baton.router.generation import PromptHashes
from baton.router.policy.cluster import WorkerSnapshot
from baton.router.policy.embedding import EmbeddingFamily
from baton.router.request_context import RequestContext
from baton.rpc.backoff import Backoff


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingJob:
    """A request for embeddings, tokenised."""

    request_id: str
    inputs: Sequence[Sequence[int]]  # token ids
    family: EmbeddingFamily
    params: PoolingParams
    cache_salt: str
    context: RequestContext

    @property
    def size(self) -> int:
        """Dimensions of the embeddings."""
        return self.params.dimensions or self.family.pooling.size

    def hashes(self, places: Sequence[int]) -> dict[int, PromptHashes]:
        """Return the hashes of some inputs, by their index."""
        adapter = self.family.adapter
        return {place: PromptHashes(self.inputs[place], self.cache_salt, adapter=adapter) for place in places}


@dataclass(slots=True)
class EmbeddingBatch:
    """Inputs that are not computed yet, over all attempts."""

    left: list[int]  # indices
    hashes: dict[int, PromptHashes]  # by index
    is_first: bool  # of the request: without a worker, its first attempt fails at once; those of the others wait
    attempt: int = 0  # earlier attempts
    num_failures: int = 0  # earlier attempts in which a worker was lost
    losses: Losses = field(default_factory=Losses)
    refusals: Counter[str] = field(default_factory=Counter)  # by incarnation that took no requests, as it drained
    refused_until_s: dict[str, float] = field(default_factory=dict)  # by incarnation: when it may be asked again
    lost: dict[str, grpc.aio.Channel | None] = field(default_factory=dict)  # by incarnation, its channel that broke
    busy: set[str] = field(default_factory=set)  # incarnations that refused it and may still be full
    refused_s: float | None = None  # event loop time of the first refusal for lack of room
    backoff: Backoff | None = None  # None: has not waited for room yet
    failure: Exception | None = None  # of the last attempt


def divided(lengths: Sequence[int], max_inputs: int, max_tokens: int) -> list[list[int]]:
    """Divide inputs into batches of consecutive ones; returns their places. A longer input forms a batch alone."""
    batches: list[list[int]] = []
    num_tokens = 0
    for place, length in enumerate(lengths):
        if not batches or len(batches[-1]) == max_inputs or num_tokens + length > max_tokens:
            batches.append([])
            num_tokens = 0
        batches[-1].append(place)
        num_tokens += length
    return batches


def embed_request(
    job: EmbeddingJob, batch: EmbeddingBatch, worker: WorkerSnapshot, router_id: str, number: int
) -> EmbedRequest:
    """Return the message for the inputs of a batch that are not computed yet."""
    message = EmbedRequest(
        request_id=job.request_id,
        inputs=[EmbedInput(token_ids=job.inputs[place]) for place in batch.left],
        cache_salt=job.cache_salt,
        priority=job.context.priority,
        incarnation=worker.incarnation,
        fingerprint=worker.fingerprint,
        router_id=router_id,
        number=number,
        adapter="" if job.family.adapter is None else job.family.adapter.name,
        adapter_digest="" if job.family.adapter is None else job.family.adapter.digest,
    )
    if job.params.dimensions is not None:
        message.dimensions = job.params.dimensions
    if job.params.normalizes is not None:
        message.normalizes = job.params.normalizes
    return message
