"""Libraries of GPUs, computed by torch."""
