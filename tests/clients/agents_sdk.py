"""A tool loop of two steps with OpenAI's Agents SDK: `python agents_sdk.py URL`."""

import asyncio
import sys

from agents import (
    Agent,
    Model,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

CITIES: list[str] = []


@function_tool
def get_weather(city: str) -> str:
    """Get the weather of a city."""
    CITIES.append(city)
    return '{"temperature": 7, "sky": "cloudy"}'


async def run(model: Model, continues: bool) -> None:
    """Run the loop whole and streamed. The model must call the tool once, and then answer.

    continues: the second step has only the new items, and the id of the first step's response.
    """
    CITIES.clear()
    settings = ModelSettings(tool_choice="required", parallel_tool_calls=False, temperature=0, max_tokens=400)
    agent = Agent(name="weather", model=model, tools=[get_weather], model_settings=settings)
    question = "What is the weather in Oslo?"
    whole = await Runner.run(agent, question, max_turns=2, auto_previous_response_id=continues)
    streamed = Runner.run_streamed(agent, question, max_turns=2, auto_previous_response_id=continues)
    kinds = [event.name async for event in streamed.stream_events() if event.type == "run_item_stream_event"]
    assert kinds == ["tool_called", "tool_output", "message_output_created"], kinds
    assert CITIES == ["Oslo", "Oslo"]
    assert whole.final_output == streamed.final_output
    assert "7 degrees" in whole.final_output, whole.final_output


async def main(url: str) -> None:
    """Run the loop over both of OpenAI's APIs."""
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none")
    await run(OpenAIChatCompletionsModel("baton-bundled", client), continues=False)
    await run(OpenAIResponsesModel("baton-bundled", client), continues=False)
    await run(OpenAIResponsesModel("baton-bundled", client), continues=True)


asyncio.run(main(sys.argv[1]))
