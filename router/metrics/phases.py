"""Histograms of the phases of a completion: until it is sent to a worker, prefill, decode."""

import time

from prometheus_client import CollectorRegistry

from baton.router.metrics.histogram import LoopHistogram
from baton.router.metrics.live import LiveCompletion

PHASES = {
    "request_dispatch_time_seconds": "Arrival to the command to the first worker.",
    "request_prefill_time_seconds": "Command to the first worker until the first token, queues of workers included.",
    "request_decode_time_seconds": "First token to last token.",
    "request_inference_time_seconds": "Command to the first worker until the last token.",
}


class PhaseSeries:
    """Histograms of the phases, each of the completions that have passed it."""

    def __init__(self, registry: CollectorRegistry, model_name: str, prefix: str, buckets_s: tuple[float, ...]) -> None:
        labels = {"model_name": model_name}
        self._dispatch, self._prefill, self._decode, self._inference = (
            LoopHistogram(prefix + name, text, labels, buckets_s, registry) for name, text in PHASES.items()
        )

    def routed(self, live: LiveCompletion) -> None:
        """Record that a completion is sent to workers; only the first time counts."""
        if live.num_attempts == 1:
            self._dispatch.observe(time.monotonic() - live.arrived_s)

    def ended(self, live: LiveCompletion) -> None:
        """Record the phases of a completion that ended. One without tokens has none."""
        if live.ttft_s is None or live.routed_s is None:
            return
        waited_s = live.routed_s - live.arrived_s
        decode_s = live.last_token_s - live.arrived_s - live.ttft_s
        self._prefill.observe(live.ttft_s - waited_s)
        self._decode.observe(decode_s)
        self._inference.observe(live.ttft_s - waited_s + decode_s)
