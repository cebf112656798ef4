"""OpenAI's Responses API: a format of chat requests, and the responses that a conversation continues."""
