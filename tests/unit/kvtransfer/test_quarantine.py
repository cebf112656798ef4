import asyncio

from baton.kvtransfer.quarantine import Quarantine


async def test_waits_for_every_writer_of_the_wanted_blocks_only() -> None:
    quarantine = Quarantine()
    quarantine.hold([1, 2])
    quarantine.hold([2, 3])
    await quarantine.wait_clear([4, 5])
    both = asyncio.create_task(quarantine.wait_clear([2, 4]))
    one = asyncio.create_task(quarantine.wait_clear([1]))
    await asyncio.sleep(0)
    quarantine.release([1, 2])
    await one
    assert not both.done()
    assert 2 in quarantine
    assert 1 not in quarantine
    assert len(quarantine) == 2
    quarantine.release([2, 3])
    await both
    assert len(quarantine) == 0


async def test_a_cancelled_waiter_does_not_disturb_the_others() -> None:
    quarantine = Quarantine()
    quarantine.hold([7])
    first = asyncio.create_task(quarantine.wait_clear([7]))
    second = asyncio.create_task(quarantine.wait_clear([7]))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    quarantine.release([7])
    await second
    assert first.cancelled()
