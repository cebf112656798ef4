"""Fuzzers of everything that takes input; each has a short form of some seconds, and runs for as long as it is told."""
