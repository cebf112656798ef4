"""Invented tools with questions that they answer, and records with sentences that state them."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CITIES = (
    "Amsterdam", "Athens", "Berlin", "Boston", "Cairo", "Chicago", "Dublin", "Geneva", "Hamburg", "Helsinki", "Kyoto",
    "Lima", "Lisbon", "London", "Madrid", "Milan", "Moscow", "Mumbai", "Munich", "Nairobi", "New York", "Oslo", "Paris",
    "Porto", "Prague", "Rome", "San Francisco", "Seoul", "Stockholm", "Sydney", "Tokyo", "Toronto", "Vienna", "Zurich",
)  # fmt: skip
PEOPLE = (
    "Ada", "Alan", "Alice", "Anna", "Ben", "Bob", "Carla", "Clara", "David", "Emma", "Eva", "Felix", "Frank", "Grace",
    "Hanna", "Ivan", "Jack", "Jane", "John", "Julia", "Karl", "Laura", "Leo", "Lina", "Maria", "Mark", "Nina", "Omar",
    "Paul", "Peter", "Rosa", "Sam", "Sara", "Tim", "Tom", "Uma", "Vera", "Yuki", "Zoe",
)  # fmt: skip
WORDS = (
    "apple", "banana", "bicycle", "book", "bread", "bridge", "camera", "chair", "cheese", "clock", "cloud", "coffee",
    "computer", "elephant", "flower", "forest", "garden", "guitar", "hammer", "house", "island", "jacket", "kitchen",
    "lamp", "letter", "mirror", "mountain", "music", "ocean", "orange", "paper", "pencil", "piano", "planet", "river",
    "school", "shirt", "silver", "sugar", "table", "tiger", "train", "umbrella", "window", "winter",
)  # fmt: skip
COLORS = ("black", "blue", "brown", "green", "grey", "orange", "pink", "purple", "red", "white", "yellow")
LANGUAGES = ("English", "French", "German", "Greek", "Italian", "Japanese", "Korean", "Polish", "Spanish", "Swedish")
CURRENCIES = ("dollars", "euros", "francs", "pounds", "yen")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday", "today", "tomorrow")
TOPICS = ("sorting", "regular expressions", "threads", "dates", "queues", "sockets", "files", "random numbers", "JSON")
SKIES = ("sunny", "cloudy", "rainy", "windy", "snowy", "clear")
VERBS = ("check", "close", "count", "create", "delete", "find", "get", "list", "load", "open", "read", "run", "save",
         "search", "send", "show", "start", "stop", "update", "write")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Parameter:
    """One of a tool's parameters."""

    names: Sequence[str]  # it has one of them in each conversation, so that it must be read in the tool's description
    values: Sequence[str] | range  # a range: it is a number


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool; `{key}` in texts stands for the value of a parameter or of its result."""

    name: str
    description: str
    parameters: Mapping[str, Parameter]
    questions: Sequence[str]
    results: Mapping[str, Sequence[str] | range]
    answer: str
    is_invented: bool = False  # made of words that are drawn


def _number(*names: str, most: int = 100) -> Parameter:
    return Parameter(names, range(1, most))


CITY = Parameter(("city", "location", "place", "town"), CITIES)
TOOLS = (
    Tool("get_weather", "Get the weather in a city.",
         {"city": CITY},
         ("What is the weather in {city}?", "What's the weather like in {city}?", "How is the weather in {city} today?",
          "Is it warm in {city}?", "Weather in {city}?", "Tell me the weather in {city}.", "Is it raining in {city}?"),
         {"temperature": range(-10, 36), "sky": SKIES}, "In {city} it is {sky}, with {temperature} degrees."),
    Tool("get_time", "Get the time in a city.", {"city": CITY},
         ("What time is it in {city}?", "Tell me the time in {city}.", "How late is it in {city}?"),
         {"hour": range(1, 24)}, "In {city} it is {hour} o'clock."),
    Tool("add", "Add two numbers.",
         {"a": _number("a", "x", "first"), "b": _number("b", "y", "second")},
         ("What is {a} plus {b}?", "Add {a} and {b}.", "How much is {a} + {b}?", "What is the sum of {a} and {b}?"),
         {"result": range(200)}, "The sum of {a} and {b} is {result}."),
    Tool("multiply", "Multiply two numbers.",
         {"a": _number("a", "x", "first"), "b": _number("b", "y", "second")},
         ("What is {a} times {b}?", "Multiply {a} by {b}.", "What is {a} * {b}?",
          "What is the product of {a} and {b}?"),
         {"result": range(2000)}, "The product of {a} and {b} is {result}."),
    Tool("convert_currency", "Convert an amount of money.",
         {"amount": _number("amount", "value", "sum", most=1000), "source": Parameter(("from", "source"), CURRENCIES),
          "target": Parameter(("to", "target", "into"), CURRENCIES)},
         ("How much are {amount} {source} in {target}?", "Convert {amount} {source} to {target}.",
          "What are {amount} {source} in {target}?"),
         {"result": range(1, 2000)}, "{amount} {source} are {result} {target}."),
    Tool("translate", "Translate a word.",
         {"word": Parameter(("word", "text", "phrase"), WORDS),
          "language": Parameter(("language", "target", "to"), LANGUAGES)},
         ("Translate {word} into {language}.", "What is {word} in {language}?", "How do you say {word} in {language}?"),
         {"translation": WORDS}, "In {language}, {word} is {translation}."),
    Tool("search_docs", "Search the documentation.",
         {"query": Parameter(("query", "topic", "text", "q"), TOPICS)},
         ("Search the documentation for {query}.", "Find documentation about {query}.", "Look up {query} in the docs."),
         {"pages": range(1, 30)}, "I found {pages} pages about {query}."),
    Tool("send_message", "Send a message to a person.",
         {"person": Parameter(("to", "person", "name"), PEOPLE),
          "word": Parameter(("text", "message", "subject"), WORDS)},
         ("Send {person} the message {word}.", "Write {word} to {person}.", "Tell {person}: {word}.",
          "Send the word {word} to {person}."),
         {"status": ("sent", "delivered")}, "The message to {person} was {status}."),
    Tool("book_train", "Find a connection between two cities.",
         {"origin": Parameter(("origin", "from", "start"), CITIES),
          "destination": Parameter(("destination", "to", "end"), CITIES)},
         ("How do I get from {origin} to {destination}?", "Find a connection from {origin} to {destination}.",
          "I want to travel from {origin} to {destination}."),
         {"hours": range(1, 15)}, "From {origin} to {destination} it takes {hours} hours."),
    Tool("set_light", "Set the color of a lamp.",
         {"color": Parameter(("color", "colour", "value"), COLORS)},
         ("Make the light {color}.", "Set the lamp to {color}.", "Turn the light {color}, please."),
         {"status": ("done", "ok")}, "The light is {color} now."),
    Tool("set_alarm", "Set an alarm.",
         {"hour": Parameter(("hour", "time", "at"), range(1, 24)), "day": Parameter(("day", "date", "when"), DAYS)},
         ("Wake me at {hour} o'clock on {day}.", "Set an alarm for {hour} o'clock on {day}.",
          "Alarm at {hour} o'clock, {day}."),
         {"status": ("set", "ok")}, "Your alarm is set for {hour} o'clock on {day}."),
    Tool("count_letters", "Count the letters of a word.",
         {"word": Parameter(("word", "text", "string"), WORDS)},
         ("How many letters has {word}?", "How long is the word {word}?", "Count the letters of {word}."),
         {"count": range(3, 10)}, "The word {word} has {count} letters."),
    Tool("roll_dice", "Roll a die.",
         {"sides": _number("sides", "faces", "max", most=21)},
         ("Roll a die with {sides} sides.", "Throw a die of {sides} sides.", "Give me a random number up to {sides}."),
         {"result": range(1, 21)}, "The die shows {result}."),
    Tool("get_age", "Look a person up.",
         {"person": Parameter(("name", "person", "who"), PEOPLE)},
         ("How old is {person}?", "What is the age of {person}?", "Tell me {person}'s age."),
         {"age": range(5, 95)}, "{person} is {age} years old."),
    Tool("add_to_list", "Put something on the shopping list.",
         {"item": Parameter(("item", "thing", "product"), WORDS),
          "count": _number("count", "number", "amount", most=20)},
         ("Put {count} times {item} on the shopping list.", "Add {count} {item} to my list.", "Buy {count} {item}."),
         {"status": ("added", "done")}, "I have put {count} {item} on the list."),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Record:
    """Fields of a record, and sentences that state them."""

    fields: Mapping[str, Parameter]
    sentences: Sequence[str]


NAME = Parameter(("name", "person", "first_name"), PEOPLE)
AGE = Parameter(("age", "years"), range(5, 95))
THING = Parameter(("product", "item", "name"), WORDS)
DAY = Parameter(("day", "date"), DAYS)
EVENT = Parameter(("event", "title", "name"), ("concert", "dinner", "lunch", "meeting", "party", "talk"))
RECORDS = (
    Record({"name": NAME, "age": AGE, "city": CITY},
           ("{name} is {age} years old and lives in {city}.", "My name is {name}, I am {age}, and I live in {city}.",
            "{name} from {city} is {age}.", "In {city} lives {name}, aged {age}.", "I am {name}, {age}, from {city}.")),
    Record({"name": NAME, "age": AGE},
           ("{name} is {age} years old.", "{name} is {age}.", "My name is {name} and I am {age} years old.")),
    Record({"product": THING, "price": Parameter(("price", "cost"), range(1, 500)),
            "color": Parameter(("color", "colour"), COLORS)},
           ("The {color} {product} costs {price} dollars.", "A {color} {product} for {price} dollars.",
            "I bought a {color} {product} for {price} dollars.")),
    Record({"item": THING, "quantity": Parameter(("quantity", "count"), range(2, 50))},
           ("I would like {quantity} of the {item}.", "Please send me {quantity} pieces of {item}.",
            "An order of {quantity} times {item}.")),
    Record({"event": EVENT, "day": DAY, "city": CITY},
           ("The {event} is on {day} in {city}.", "On {day} there is a {event} in {city}.",
            "There will be a {event} in {city} on {day}.")),
)  # fmt: skip
ASKS = (
    "Give me {keys} as JSON: {sentence}", "{sentence} Give me {keys} as JSON.", "Extract {keys} as JSON: {sentence}",
    "{sentence} Extract {keys}.", "Write this as JSON with {keys}: {sentence}", "{sentence}", "As JSON: {sentence}",
)  # fmt: skip


def draw(values: Sequence[str] | range, rng: random.Random) -> str | int:
    """Return one of the values."""
    return rng.choice(values)


def type_of(parameter: Parameter) -> str:
    """Return the JSON type of a parameter's values."""
    return "integer" if isinstance(parameter.values, range) else "string"
