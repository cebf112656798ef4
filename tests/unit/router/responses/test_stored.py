"""The content of records: what was stored is read again, and nothing else is."""

import random

import pytest

from baton.router.responses.stored import (
    HEAD,
    INLINE_BYTES,
    MAX_BYTES,
    StoredResponse,
    decode,
    encode,
    json_bytes,
    pack,
)
from baton.rpc.status import Internal

INPUT = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "ö"}]}]


async def test_responses_are_read_as_they_were_stored() -> None:
    for length in (1, INLINE_BYTES * 2):
        response = {"output": [{"type": "message", "text": "a" * length}]}
        content = await encode(pack(INPUT), response)
        [found] = await decode([content])
        assert found == StoredResponse(INPUT, response)
        assert found.items == (*INPUT, *response["output"])
        assert length < json_bytes(content) < length + 500
        assert len(content) < 1000


async def test_damaged_records_are_refused() -> None:
    content = await encode(pack(INPUT), {"output": []})
    rng = random.Random(1)
    damaged = [content[:length] for length in range(len(content) - 5)]  # the last bytes are a checksum
    for _ in range(300):
        place = rng.randrange(len(content) - 5)
        damaged.append(content[:place] + bytes([content[place] ^ (1 + rng.randrange(255))]) + content[place + 1 :])
    num_refused = 0
    for each in damaged:
        try:
            found = await decode([each])
        except Internal:
            num_refused += 1
        else:
            assert all(isinstance(response.output, list) for response in found)
    assert num_refused > len(damaged) * 0.8
    bomb = await encode(pack(INPUT), {"output": ["a" * (1 << 24)]})
    lying = HEAD.pack(*(10 if place else each for place, each in enumerate(HEAD.unpack_from(bomb)))) + bomb[HEAD.size :]
    with pytest.raises(Internal, match="damaged"):
        await decode([lying])
    endless = HEAD.pack(MAX_BYTES, 1, 0) + bomb[HEAD.size :]
    with pytest.raises(Internal, match="damaged"):
        await decode([endless])
