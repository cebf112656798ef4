"""Model families with Mamba-2 layers, compared like the other new families; and a handover of one of them."""

from dataclasses import replace
from functools import partial

import torch

from benchmarks.gpu.handover_engines import transports_of
from benchmarks.gpu.numerics.families import check_family
from benchmarks.gpu.numerics.handover import check_handover
from benchmarks.gpu.small_models import SmallModel
from benchmarks.gpu.stage import Record, Setting

_SIZES = {"hidden_size": 256, "intermediate_size": 384, "initializer_range": 0.06}
_HEADS = _SIZES | {"head_dim": 64}
_STATES = {"ssm_state_size": 64, "mamba_num_heads": 8, "mamba_head_dim": 64}
_MIXERS = {"mamba_d_state": 64, "mamba_d_head": 64, "mamba_n_heads": 8}
_PURE = {"hidden_size": 256, "initializer_range": 0.06, "head_dim": 64, "num_heads": 8, "state_size": 64}

FAMILIES = (
    SmallModel("nemotron-h", _HEADS | _STATES),
    SmallModel("mamba2", _PURE),
    SmallModel("bamba", _HEADS | _MIXERS),
    SmallModel("falcon-h1", _HEADS | _MIXERS | {"mamba_d_ssm": 512}),
    SmallModel("granite-hybrid", _SIZES | _MIXERS | {"shared_intermediate_size": 384}),
    SmallModel("nemotron-h-moe", _HEADS | _STATES | {"moe_intermediate_size": 128}, is_sparse=True),
    SmallModel("granite-hybrid-moe", _SIZES | _MIXERS | {"intermediate_size": 128}, is_sparse=True),
)
HANDED_OVER = FAMILIES[0]
NUM_QUICK = 2  # one family with attention, and one without


def run(setting: Setting, record: Record) -> None:
    """Run the stage."""
    torch.manual_seed(0)
    setting = replace(setting, directory=setting.directory / "mamba")
    for model in FAMILIES[: NUM_QUICK if setting.is_quick else None]:
        record.attempt(model.architecture, partial(check_family, record, setting, model))
    record.attempt("handover", partial(check_handover, record, setting, HANDED_OVER, transports_of(setting)[-1:]))
