"""LoRA adapters (arXiv 2106.09685): read, held, and applied to the rows of a batch without merging weights."""
