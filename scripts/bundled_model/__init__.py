"""Trains the small model that Baton carries with it; run through `scripts/train_bundled_model.py`."""
