"""Model families, one file each: the config keys that a family reads, what it refuses, how its tensors are named."""
