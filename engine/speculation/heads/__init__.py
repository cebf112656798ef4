"""Draft heads: small networks that draft from hidden states of the model (EAGLE, EAGLE-3, multi-token prediction)."""
