"""Experts of few tokens on a GPU: each pair of a token and a chosen expert is computed by itself, without sorting."""
