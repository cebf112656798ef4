"""A simulated engine: the real scheduler and block manager without a model."""
