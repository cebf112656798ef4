"""Tool calls and structured output with LangChain's OpenAI class: `python langchain_openai_class.py URL`."""

import sys

from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


@tool
def get_weather(city: str) -> str:
    """Get the weather in a city."""
    return '{"temperature": 7, "sky": "cloudy"}'


class Answer(BaseModel):
    """An answer."""

    known: bool


def main(url: str) -> None:
    """Call a tool whole and streamed, send its result, and ask for structured output."""
    model = ChatOpenAI(model="baton-bundled", base_url=f"{url}/v1", api_key="none", temperature=0, max_tokens=400)
    bound = model.bind_tools([get_weather], tool_choice="required", parallel_tool_calls=False)
    question = HumanMessage("What is the weather in Oslo?")
    message = bound.invoke([question])
    [call] = message.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Oslo"})
    streamed: AIMessageChunk | None = None
    for chunk in bound.stream([question]):
        assert isinstance(chunk, AIMessageChunk)
        streamed = chunk if streamed is None else streamed + chunk
    assert streamed is not None
    assert [each["args"] for each in streamed.tool_calls] == [call["args"]]
    result = get_weather.invoke(call)
    assert isinstance(result, ToolMessage)
    final = model.bind_tools([get_weather]).invoke([question, message, result])
    assert "7 degrees" in final.text, final.text
    answer = model.with_structured_output(Answer, method="json_schema").invoke([question])
    assert isinstance(answer, Answer)


main(sys.argv[1])
