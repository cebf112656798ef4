"""Experts spread over ranks: placement, balance, and dispatch of tokens to them."""
