"""Model of both pools together, for a share of the prompts that decode workers compute."""

from dataclasses import dataclass

from baton.deployment.autoscaling.budget import Budget
from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.autoscaling.moments import Moments
from baton.deployment.autoscaling.prediction.decode_model import DecodeModel
from baton.deployment.autoscaling.prediction.local_prompts import LocalPrompts
from baton.deployment.autoscaling.prediction.pool_model import smallest_size
from baton.deployment.autoscaling.prediction.prefill_model import PrefillModel
from baton.deployment.autoscaling.settings import ScalingSettings
from baton.deployment.autoscaling.snapshot import PoolsSnapshot

MOST_PREFILL = 4096  # replicas


@dataclass(frozen=True, slots=True)
class PoolsModel:
    """The models of both pools."""

    local_share: float  # of the requests, whose prompts decode workers compute
    prefill: PrefillModel
    decode: DecodeModel

    @classmethod
    def of(
        cls, snapshot: PoolsSnapshot, settings: ScalingSettings, factors: ByPool[float], local_share: float
    ) -> "PoolsModel":
        """Make the models from measured rates. `factors` are the corrections by measured latencies."""
        tokens = snapshot.traffic.uncached_tokens
        return cls._of(snapshot, settings, factors, local_share, ByPool(tokens, tokens))

    @classmethod
    def as_measured(cls, snapshot: PoolsSnapshot, settings: ScalingSettings, factors: ByPool[float]) -> "PoolsModel":
        """Make the models for the prompts that decode workers compute now."""
        traffic = snapshot.traffic
        local_share = 1 - traffic.remote_share
        if traffic.remote_tokens is None or not 0 < local_share < 1:
            return cls.of(snapshot, settings, factors, local_share)
        local = traffic.uncached_tokens.without(traffic.remote_tokens, traffic.remote_share)
        return cls._of(snapshot, settings, factors, local_share, ByPool(traffic.remote_tokens, local))

    @classmethod
    def _of(
        cls,
        snapshot: PoolsSnapshot,
        settings: ScalingSettings,
        factors: ByPool[float],
        local_share: float,
        tokens: ByPool[Moments],
    ) -> "PoolsModel":
        """Make the models. `tokens`: uncached prompt tokens of the requests that each pool prefills."""
        traffic, prefill, rate = snapshot.traffic, snapshot.prefill, snapshot.traffic.requests_per_s
        prefills = PrefillModel.of(traffic, prefill, settings.slo, factors.prefill, 1 - local_share, tokens.prefill)
        prompts = LocalPrompts(
            share=local_share,
            tokens=tokens.decode,
            token_s=factors.prefill / prefill.tokens_per_s,
            max_step_tokens=prefill.max_step_tokens,
            arrival_cv2=traffic.arrival_cv2,
            objective_s=prefills.ttft_s,
        )
        least = smallest_size(prefills, rate, 1, MOST_PREFILL)
        token_s = prefills.prompt_token_s(traffic.prompt_tokens, least, rate)
        decodes = DecodeModel.of(traffic, snapshot.decode, settings, factors.decode, token_s, prompts)
        return cls(local_share, prefills, decodes)

    def sizes(self, requests_per_s: float, budget: Budget) -> ByPool[int]:
        """Return the smallest sizes that hold; the budget's limits where none do."""
        least, most = budget.least, budget.most
        return ByPool(
            smallest_size(self.prefill, requests_per_s, least.prefill, most.prefill),
            smallest_size(self.decode, requests_per_s, least.decode, most.decode),
        )

    def holds(self, sizes: ByPool[int], requests_per_s: float) -> bool:
        """Whether both pools are within the SLO with these sizes."""
        return self.prefill.holds(sizes.prefill, requests_per_s) and self.decode.holds(sizes.decode, requests_per_s)

    def strain(self, sizes: ByPool[int], requests_per_s: float) -> float:
        """Return the larger ratio of a predicted latency to its objective."""
        return max(
            self.prefill.predicted_s(sizes.prefill, requests_per_s) / self.prefill.ttft_s,
            self.decode.predicted_s(sizes.decode, requests_per_s) / self.decode.tpot_s,
        )
