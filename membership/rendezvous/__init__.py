"""Rendezvous of groups of workers that step together: membership, epochs and wakes; imports no torch."""
