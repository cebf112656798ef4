"""Layers of models."""
