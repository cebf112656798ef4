"""Comparison of a cluster's needs with this machine's GPUs and memory, before any of its processes starts."""

from baton.deployment.local.cluster_plan import ClusterPlan
from baton.engine.config import ModelConfig
from baton.engine.execution.visible_gpus import visible_gpus
from baton.process.host_memory import HostMemory
from baton.settings.device import require_gpus
from baton.worker.memory import memory_need


def check_resources(plan: ClusterPlan, model: ModelConfig, memory: HostMemory) -> None:
    """Raise OptionError for GPUs that are not there, or more memory than there is for all workers together."""
    for worker in plan.workers:
        if worker.is_on_gpu:
            require_gpus(worker.engine.device, worker.tensor_parallel, visible_gpus())
    memory_need(plan.workers, model).check(memory)
