"""Cost and benefit of expert parallelism; `python -m benchmarks.expert_parallel`."""
