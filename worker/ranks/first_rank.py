"""The FirstRank service, to which the follower ranks of a worker connect."""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

import grpc

from baton.protos import rank_pb2, rank_pb2_grpc
from baton.rpc.peers import Context
from baton.worker.ranks.hello import refusal_of
from baton.worker.ranks.remote_rank import RemoteRank

logger = logging.getLogger(__name__)


class FirstRankService(rank_pb2_grpc.FirstRankServicer):
    """Streams of a worker's followers. A rank of another worker is refused and does not end this one."""

    def __init__(self, hello: rank_pb2.RankHello, followers: Sequence[RemoteRank]) -> None:
        """hello: with the first rank's options, which the others must have too."""
        self._hello = hello
        self._followers = {each.rank: each for each in followers}
        self.last_refusal = ""

    async def Follow(  # noqa: N802
        self, request_iterator: AsyncIterator[rank_pb2.RankNews], context: Context
    ) -> AsyncIterator[rank_pb2.RankCommand]:
        """Accept a follower, stream the commands to it and receive its news."""
        first = await anext(request_iterator, rank_pb2.RankNews())
        refusal = refusal_of(first.hello, self._hello)
        if refusal is None and self._followers[first.hello.rank].connected.is_set():
            refusal = f"rank {first.hello.rank} has connected already; is node_rank the same on two nodes?"
        if refusal is not None:
            self.last_refusal = refusal
            logger.warning("refused the rank at %s: %s", context.peer(), refusal)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, refusal)
        async with aclosing(self._followers[first.hello.rank].commands(request_iterator, context)) as commands:
            async for command in commands:
                yield command
