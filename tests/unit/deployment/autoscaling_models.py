"""Models of one replica each, from hand-made snapshots."""

from baton.deployment.autoscaling.prediction.decode_model import DecodeModel
from baton.deployment.autoscaling.prediction.prefill_model import PrefillModel
from baton.deployment.autoscaling.settings import SLO
from tests.unit.deployment.autoscaling_snapshots import SETTINGS, decode, pool, prefill, traffic


def prefill_model(rate: float = 1.0, slo: SLO = SLO(), factor: float = 1.0, handover_s: float = 0.0) -> PrefillModel:  # noqa: B008
    return PrefillModel.of(traffic(rate), prefill(pool(), handover_s=handover_s), slo, factor)


def decode_model(rate: float = 1.0, factor: float = 1.0, prompt_token_s: float = 0.0, **changes: float) -> DecodeModel:
    return DecodeModel.of(traffic(rate), decode(pool(), **changes), SETTINGS, factor, prompt_token_s)
