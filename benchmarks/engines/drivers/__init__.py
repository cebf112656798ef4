"""Scripts that run in an engine's own environment, where only `driver` can be imported."""
