"""Structured output: grammars that outputs must match."""
