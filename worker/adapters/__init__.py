"""LoRA adapters of a worker: loaded on all of its ranks, unloaded, and reported."""
