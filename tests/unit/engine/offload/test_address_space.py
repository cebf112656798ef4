"""Addresses of which only some have memory."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from baton.engine.errors import EngineError
from baton.engine.offload.address_space import HUGE_PAGE, PAGE, AddressSpace


@pytest.mark.parametrize("is_huge", [False, True], ids=["small pages", "huge pages"])
def test_a_dropped_range_is_empty_and_its_neighbours_stay(is_huge: bool) -> None:
    space, size = AddressSpace(1 << 25), 3 * HUGE_PAGE + 5 * PAGE
    if is_huge:
        for place in range(3):
            space.prefer_huge_pages(place * size, size)
    ranges = [space.tensor(torch.uint8, (size,), place * size) for place in range(3)]
    for place in range(3):
        space.memory(place * size, size)[:] = bytes([place + 1]) * size
    space.drop(size, size)
    assert [int(each.max()) for each in ranges] == [1, 0, 3]
    assert [int(each.min()) for each in ranges] == [1, 0, 3]
    space.memory(size, size)[:] = bytes([9]) * size
    assert (ranges[1] == 9).all()


def test_tensors_see_what_is_read_to_their_addresses() -> None:
    space = AddressSpace(1 << 40)  # more than any memory
    tensor = space.tensor(torch.int32, (2, 3), 1 << 39)
    space.memory(1 << 39, 24)[:] = torch.arange(6, dtype=torch.int32).numpy().tobytes()
    assert tensor.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_too_many_addresses_are_refused() -> None:
    with pytest.raises(EngineError, match="GB of addresses cannot be reserved"):
        AddressSpace(1 << 60)


def test_no_huge_page_reaches_into_other_units() -> None:
    """Otherwise, with huge pages for all memory, small units would take several times their size."""
    space = AddressSpace(1 << 25)
    space.prefer_huge_pages(5 * PAGE, 3 * HUGE_PAGE)
    huge = sum(end - start for start, end, flags in mappings_within(space, 1 << 25) if "hg" in flags)
    small = sum(end - start for start, end, flags in mappings_within(space, 1 << 25) if "nh" in flags)
    assert huge in (2 * HUGE_PAGE, 3 * HUGE_PAGE)
    assert huge + small == 1 << 25


def mappings_within(space: AddressSpace, num_bytes: int) -> Iterator[tuple[int, int, list[str]]]:
    """Yield the mappings of a space, with their flags."""
    first = space.tensor(torch.uint8, (1,), 0).data_ptr()
    start = end = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match("([0-9a-f]+)-([0-9a-f]+) ", line):
            start, end = (int(each, 16) for each in found.groups())
        elif line.startswith("VmFlags:") and start < first + num_bytes and end > first:
            yield max(start, first), min(end, first + num_bytes), line.split()[1:]
