"""Suffix decoding: drafts from what followed a request's last tokens in it, and in its tenant's recent outputs."""
