"""What spreading a model's experts over ranks costs and brings; `python -m benchmarks.expert_parallel`."""
