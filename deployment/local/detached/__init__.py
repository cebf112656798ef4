"""Servers without a terminal: their records, start and stop."""
