"""Medusa: heads that read the model's last hidden state, each of which predicts a token further ahead."""
