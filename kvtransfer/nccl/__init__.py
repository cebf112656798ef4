"""KV transfer by NCCL between two processes, both of which take part."""
