"""An engine with a draft head, whose drafts are always wanted."""

import json
from collections.abc import Sequence
from pathlib import Path

from baton.engine.engine import Engine
from baton.engine.request import Request
from baton.settings.values import JsonText, parse_json
from tests.unit.engine.speculation.draft_rig import draft_freely, drafter_of
from tests.unit.engine.speculation.speculation_rig import engine_of


def option(method: str, head: Path | None = None, num_tokens: int = 4) -> JsonText:
    """The value of speculative_config for a draft head."""
    found = {"method": method, "num_speculative_tokens": num_tokens} | ({"model": str(head)} if head else {})
    text = parse_json(json.dumps(found))
    assert text is not None
    return text


def head_engine(model: Path, method: str, head: Path | None = None, **options: object) -> Engine:
    """An engine as in `engine_of`, whose drafts cost nothing, and whose blocks are checked at every step."""
    engine = engine_of(model, False, speculative_config=option(method, head), **options)
    draft_freely(engine)
    return engine


def quiet_engine(model: Path, method: str, head: Path | None = None, **options: object) -> Engine:
    """An engine with a head that never drafts by itself."""
    engine = head_engine(model, method, head, **options)
    assert engine.speculator is not None
    engine.speculator._max_tokens = 0
    return engine


def advance(engine: Engine, request: Request, num_tokens: int) -> None:
    """Step until a request has this many tokens."""
    while request.num_tokens < num_tokens:
        engine.run(engine.schedule())
        engine.check_integrity()


def drafts_of(engine: Engine, request: Request, count: int) -> Sequence[int]:
    """The tokens that the head drafts next, if it may prepare at any price."""
    drafter = drafter_of(engine)
    for _ in range(100):
        drafter.begin_step()
        if found := drafter.draft({request: count}, 1e9).token_ids.get(request):
            return found
        assert drafter.offer(request, count) is not None
    raise AssertionError("the head is never ready")
