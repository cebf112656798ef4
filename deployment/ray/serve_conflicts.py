"""What of Ray Serve's own autoscaling acts beside a plan of both pools, which does not know of it."""

from collections.abc import Iterator

from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.ray.serve_context import Contexts, ServeConfig


def misfits(contexts: Contexts, pools: ByPool[str]) -> Iterator[str]:
    """A line for each, with what would be right. `pools` are the names of those that are planned."""
    for key, context in contexts.items():
        if key.name in pools.both():
            yield from (f"{key.name}: {line}" for line in _of_pool(context.config))
        else:
            yield f"{key.name}: its size stays: {' and '.join(pools.both())} alone are sized; give it num_replicas"


def _of_pool(config: ServeConfig) -> Iterator[str]:
    if config.upscale_delay_s or config.downscale_delay_s or config.downscale_to_zero_delay_s:
        names = "upscale_delay_s and downscale_delay_s to 0, downscale_to_zero_delay_s not at all"
        yield f"set {names}; the plan has delays of its own"
    if not config.get_upscaling_factor() == config.get_downscaling_factor() == 1:
        yield "leave upscaling_factor and downscaling_factor out; they take it to other sizes than the planned ones"
    if config.initial_replicas is not None:
        yield "leave initial_replicas out; Serve goes back to it at each change of the bounds, whatever the load"
