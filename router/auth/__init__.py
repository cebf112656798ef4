"""API keys, their limits, and the tenants whose cached prompts they share."""
