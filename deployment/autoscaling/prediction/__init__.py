"""Predictions of TTFT, TPOT and KV for pools of given sizes."""
