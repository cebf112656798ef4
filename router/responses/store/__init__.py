"""Stored responses: what a conversation continues, for a bounded time and in bounded bytes."""
