"""Fuzzers of everything that takes input; each has a short form of some seconds, or runs for `--fuzz-seconds`."""
