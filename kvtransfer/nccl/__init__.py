"""Two-sided KV transfer over NCCL: both processes take part."""
