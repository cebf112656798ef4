"""Images of chat requests: from a URL to resized pixels and placeholder tokens, without torch."""
