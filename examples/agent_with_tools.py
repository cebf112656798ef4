"""Answer a question with tools: agent_with_tools.py [URL] [QUESTION].

The model must call a tool first (`tool_choice="required"`), so even a small one does. After that it calls tools until
it answers. The server enforces the schema of the arguments, so they can be passed on unchecked.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

MAX_ROUNDS = 5  # of calls: a model may go on for ever


def get_weather(city: str) -> dict[str, object]:
    """Get the weather in a city."""
    return {"temperature": 7, "sky": "cloudy"}  # a real tool would ask a weather service for `city`


TOOLS: dict[str, Callable[..., object]] = {"get_weather": get_weather}
SCHEMAS: list[ChatCompletionToolParam] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the weather in a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


def answer(client: OpenAI, question: str) -> str:
    """Return the answer to a question, after as many rounds of tool calls as the model wants."""
    model = client.models.list().data[0].id
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": question}]
    for number in range(MAX_ROUNDS):
        choice: Any = "auto" if number else "required"
        response = client.chat.completions.create(
            model=model, messages=messages, tools=SCHEMAS, tool_choice=choice, temperature=0, max_tokens=400
        )
        message = response.choices[0].message
        if not message.tool_calls:
            return message.content or ""
        messages.append(message.model_dump(exclude_none=True))  # type: ignore[arg-type]  # the same fields
        for call in message.tool_calls:
            assert call.type == "function"
            result = TOOLS[call.function.name](**json.loads(call.function.arguments))
            print(f"{call.function.name}({call.function.arguments}) = {result}")
            messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})
    return f"no answer after {MAX_ROUNDS} rounds of tool calls"


if __name__ == "__main__":
    url, question = [*sys.argv[1:], *("http://127.0.0.1:8000", "What is the weather in Oslo?")[len(sys.argv) - 1 :]]
    print(answer(OpenAI(base_url=f"{url}/v1", api_key="none"), question))
