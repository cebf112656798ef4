"""An engine with a draft model, whose drafts are always wanted."""

import json
from collections.abc import Iterable
from pathlib import Path

from baton.engine.engine import Engine
from baton.engine.request import Request
from baton.engine.speculation.model_drafter import ModelDrafter
from baton.settings.values import JsonText, parse_json
from tests.unit.engine.speculation.free_drafts import FreeDrafts
from tests.unit.engine.speculation.speculation_rig import Outcome, engine_of, run


def option(draft: Path, num_tokens: int = 4) -> JsonText:
    """The value of speculative_config for a draft model."""
    found = parse_json(json.dumps({"method": "draft_model", "model": str(draft), "num_speculative_tokens": num_tokens}))
    assert found is not None
    return found


def drafter_of(engine: Engine) -> ModelDrafter:
    """The drafter of an engine."""
    assert engine.speculator is not None
    drafter = engine.speculator._drafter
    assert isinstance(drafter, ModelDrafter)
    return drafter


def drafting_engine(model: Path, draft: Path, num_tokens: int = 4, **options: object) -> Engine:
    """An engine as in `engine_of`, whose drafts cost nothing, and whose blocks are checked at every step."""
    engine = engine_of(model, False, speculative_config=option(draft, num_tokens), **options)
    draft_freely(engine)
    return engine


def draft_freely(engine: Engine) -> None:
    """Let drafts cost nothing, and check the draft model's blocks whenever those of the model are."""
    assert engine.speculator is not None
    engine.speculator._costs = FreeDrafts()
    own_check, drafter = engine.check_integrity, drafter_of(engine)

    def check() -> None:
        own_check()
        drafter.check_integrity()

    engine.check_integrity = check  # type: ignore[method-assign]


def run_and_free(engine: Engine, requests: Iterable[Request]) -> dict[str, Outcome]:
    """Run requests to their ends; the draft model keeps nothing of them but its prefix cache."""
    outcomes = run(engine, requests)
    drafter = drafter_of(engine)
    drafter.begin_step()
    assert not list(drafter.twins)
    blocks = drafter._model.blocks
    assert blocks.num_free == blocks.num_usable
    return outcomes


def acceptance(engine: Engine) -> float:
    """The share of drafted tokens that were right."""
    counters = engine.stats().speculation
    return counters.num_accepted_tokens / counters.num_draft_tokens
