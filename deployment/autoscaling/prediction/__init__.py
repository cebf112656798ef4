"""What pools of given sizes would do: TTFT, TPOT and KV."""
