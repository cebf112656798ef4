"""Conversations about documented objects, and small talk, from a seeded generator."""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from bundled_model import phrases
from bundled_model.docstrings import Documented
from bundled_model.prose import first_sentences

MAX_LISTED = 8
# The most asked-about modules, which get the most training.
WELL_KNOWN_MODULES = frozenset(
    [
        "builtins", "json", "re", "os", "os.path", "pathlib", "textwrap", "math", "time", "datetime", "random",
        "itertools", "functools", "collections", "string", "copy", "heapq", "bisect", "shutil", "tempfile",
        "subprocess", "threading", "logging", "csv", "glob", "statistics", "dataclasses", "contextlib", "abc",
        "typing", "enum", "argparse", "asyncio.tasks", "asyncio.queues", "asyncio.runners", "urllib.parse",
        "urllib.request",
    ]
)  # fmt: skip

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Fact:
    """Phrasings of a question with one answer, so that a small model can learn it."""

    questions: tuple[str, ...]
    answer: str


def facts_about(item: Documented) -> list[Fact]:
    """Return the facts about a documented object; none if its text does not start with prose."""
    summary = first_sentences(item.text)
    facts = []
    if summary:
        templates = phrases.QUESTIONS[item.kind]
        if item.kind == "class" and item.module == "builtins":
            templates += phrases.BUILTIN_QUESTIONS
        facts.append(Fact(_fill(templates, item.name), f"{_introduction(item)} {summary}"))
    members = [name for name in item.members if not name.startswith("_")]
    if len(members) > 1:
        has = "contains" if item.kind == "module" else "has the methods"
        listed = f"{item.name} {has} {_listing(members)}."
        facts.append(Fact(_fill(phrases.MEMBER_QUESTIONS[item.kind], item.name), listed))
    if item.arguments:
        noun = "argument" if len(item.arguments) == 1 else "arguments"
        taken = f"{item.name} takes the {noun} {_listing(item.arguments)}."
        facts.append(Fact(_fill(phrases.ARGUMENT_QUESTIONS, item.name), taken))
    return facts


def build_conversations(items: Sequence[Documented], rng: random.Random, small_talk: float) -> list[list[Message]]:
    """Return one pass over all facts in random order: conversations of one to three questions about one module each.

    `small_talk` is the number of small-talk conversations for each of these.
    """
    by_module = defaultdict(list)
    for item in items:
        by_module[item.module].extend(facts_about(item))
    conversations: list[list[Message]] = []
    for facts in by_module.values():
        rng.shuffle(facts)
        while facts:
            turns = [facts.pop() for _ in range(min(len(facts), rng.choice((1, 1, 1, 2, 3))))]
            conversations.append(_converse(turns, rng))
    weights = [len(questions) for questions, _ in phrases.SMALL_TALK]
    for _ in range(int(len(conversations) * small_talk)):
        questions, answers = rng.choices(phrases.SMALL_TALK, weights)[0]
        conversations.append(_converse([Fact(questions, rng.choice(answers))], rng))
    rng.shuffle(conversations)
    return conversations


def _converse(facts: Sequence[Fact], rng: random.Random) -> list[Message]:
    messages: list[Message] = []
    if rng.random() < 0.12:
        messages.append({"role": "system", "content": rng.choice(phrases.SYSTEM_PROMPTS)})
    for fact in facts:
        question = rng.choice(fact.questions)
        if rng.random() < 0.15:  # users do not always write full sentences
            question = question[0].lower() + question[1:].rstrip("?.")
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": fact.answer})
    return messages


def _introduction(item: Documented) -> str:
    if item.kind == "module":
        return f"{item.name} is a module of the standard library."
    if item.module == "builtins":
        owner = "built into Python"
    elif item.kind == "method":
        owner = f"of the class {item.name.split('.')[-2]}"
    else:
        owner = f"of the module {item.module}"
    return f"{item.name} is a {item.kind} {owner}."


def _fill(templates: Sequence[str], name: str) -> tuple[str, ...]:
    return tuple(template.format(name=name) for template in templates)


def _listing(names: Sequence[str]) -> str:
    if len(names) > MAX_LISTED:
        return ", ".join(names[:MAX_LISTED]) + " and others"
    return ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else names[0]
