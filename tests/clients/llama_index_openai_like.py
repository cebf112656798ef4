"""Tool calls with LlamaIndex's class for servers of OpenAI's API: `python llama_index_openai_like.py URL`."""

import sys

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike


def get_weather(city: str) -> str:
    """Get the weather in a city."""
    return '{"temperature": 7, "sky": "cloudy"}'


def main(url: str) -> None:
    """Call a tool, and send its result."""
    model = OpenAILike(
        model="baton-bundled",
        api_base=f"{url}/v1",
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        temperature=0,
        max_tokens=400,
    )
    tool = FunctionTool.from_defaults(fn=get_weather)
    question = ChatMessage(role="user", content="What is the weather in Oslo?")
    response = model.chat_with_tools([tool], chat_history=[question], tool_required=True)
    [call] = model.get_tool_calls_from_response(response)
    assert (call.tool_name, call.tool_kwargs) == ("get_weather", {"city": "Oslo"})
    output = tool.call(**call.tool_kwargs)
    result = ChatMessage(role="tool", content=output.content, additional_kwargs={"tool_call_id": call.tool_id})
    final = model.chat([question, response.message, result])
    assert "7 degrees" in (final.message.content or ""), final.message


main(sys.argv[1])
