"""Ranks that compute one model together: process groups, tensor parallelism, lockstep."""
