"""A drain waits for exactly the requests that are there."""

import asyncio

from rpc.drain import Drain


async def test_it_waits_for_the_last_request() -> None:
    drain = Drain()
    await drain.wait_idle()
    assert not drain.has_begun
    with drain.request():
        drain.enter()
        drain.begin()
        waiting = asyncio.ensure_future(drain.wait_idle())
        drain.leave()
        await asyncio.sleep(0)
        assert not waiting.done()
        assert drain.num_requests == 1
    await waiting
    assert drain.has_begun
    assert drain.num_requests == 0
