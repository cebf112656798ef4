"""Families with Mamba-2 mixers, most of them next to attention."""
