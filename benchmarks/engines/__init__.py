"""Engines compared on one machine: Baton's, and peers in separate environments."""
