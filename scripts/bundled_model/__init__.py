"""Training of the bundled model; run by `scripts/train_bundled_model.py`."""
