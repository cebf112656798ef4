from dataclasses import replace
from pathlib import Path

import pytest

from baton.engine import fingerprint
from baton.engine.fingerprint import compatibility_fingerprint
from baton.engine.model_config import read_model_config

BUNDLED = Path(__file__).parents[3] / "baton" / "bundled_model"


def test_only_engines_whose_blocks_mean_the_same_have_one_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    config = read_model_config(BUNDLED)
    known = {compatibility_fingerprint(BUNDLED, config, 16)}
    assert compatibility_fingerprint(BUNDLED, read_model_config(BUNDLED), 16) in known
    assert compatibility_fingerprint(BUNDLED, config, 16, kv_dtype=config.dtype) in known
    known.add(compatibility_fingerprint(BUNDLED, config, 16, kv_dtype="int8"))
    known.add(compatibility_fingerprint(BUNDLED, config, 32))
    known.add(compatibility_fingerprint(BUNDLED, config, 16, num_parts=2))
    known.add(compatibility_fingerprint(BUNDLED, read_model_config(BUNDLED, "float32"), 16))
    known.add(compatibility_fingerprint(BUNDLED, replace(config, rms_norm_eps=1e-5), 16))
    monkeypatch.setattr(fingerprint, "PROTOCOL_VERSION", fingerprint.PROTOCOL_VERSION + 1)
    known.add(compatibility_fingerprint(BUNDLED, config, 16))
    assert len(known) == 7
