"""The OpenAI API: request fields, response shapes, errors."""
