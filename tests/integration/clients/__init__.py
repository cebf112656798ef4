"""Libraries that people use as clients."""
