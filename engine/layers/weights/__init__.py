"""Forms of a weight in memory, each with its product: fp8, int8, groups of 4 or 8 bits, panels of native products."""
