"""A tool loop of two steps with OpenAI's Agents SDK: `python agents_sdk.py URL`."""

import asyncio
import sys

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

CITIES: list[str] = []


@function_tool
def get_weather(city: str) -> str:
    """Get the weather of a city."""
    CITIES.append(city)
    return "7 degrees"


async def main(url: str) -> None:
    """Run the loop whole and streamed. The model must call the tool once, and then answer."""
    set_tracing_disabled(True)
    model = OpenAIChatCompletionsModel("baton-bundled", AsyncOpenAI(base_url=f"{url}/v1", api_key="none"))
    settings = ModelSettings(tool_choice="required", parallel_tool_calls=False, temperature=0, max_tokens=400)
    agent = Agent(name="weather", model=model, tools=[get_weather], model_settings=settings)
    whole = await Runner.run(agent, "What is the weather in Oslo?", max_turns=2)
    streamed = Runner.run_streamed(agent, "What is the weather in Oslo?", max_turns=2)
    kinds = [event.name async for event in streamed.stream_events() if event.type == "run_item_stream_event"]
    assert kinds == ["tool_called", "tool_output", "message_output_created"], kinds
    assert len(CITIES) == 2
    assert CITIES[0] == CITIES[1]
    assert whole.final_output == streamed.final_output != ""


asyncio.run(main(sys.argv[1]))
