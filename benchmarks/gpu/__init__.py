"""GPU check of the engine: comparison with references on a CPU or in plain torch, and benchmarks."""
