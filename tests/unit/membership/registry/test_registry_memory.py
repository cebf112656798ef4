"""The registry within one process."""

from dataclasses import replace
from itertools import count

from baton.membership.registry.factory import open_registry
from baton.membership.registry.memory import MemoryRegistry
from tests.unit.membership.registry.registry_members import following, kept, make_member, reporting


async def test_fixed_addresses_are_listed_at_once() -> None:
    registry = open_registry(None, ["a:1", "b:2", "a:1"])
    async with following(registry) as views:
        view = await views.until(lambda view: view.is_listed)
        assert (view.fixed, view.members, view.error) == (("a:1", "b:2"), (), None)
    await registry.close()


async def test_members_are_added_changed_and_removed() -> None:
    registry, member = MemoryRegistry(), make_member()
    async with following(registry) as views:
        async with kept(registry.lease(member, 10)) as lease:
            await views.until_members(member)
            lease.update(replace(member, draining=True))
            await views.until_members(replace(member, draining=True))
        await views.until_members()
        assert all(view.error is None and view.is_listed for view in views.all)


async def test_reports_are_created_when_they_are_read() -> None:
    registry, numbers = MemoryRegistry(), count()
    assert await registry.reports.read() == ()
    async with reporting(registry, "router-1", lambda: f"look {next(numbers)}"):
        assert await registry.reports.read() == ("look 0",)
        async with reporting(registry, "router-2", lambda: "another"):
            assert await registry.reports.read() == ("look 1", "another")
    assert await registry.reports.read() == ()
