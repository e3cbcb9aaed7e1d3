"""The tasks of a chat that was given no tools, each a generator of short dialogues with known answers.

A generator takes a `random.Random` and nothing else, so a seed fixes the data. Every dialogue carries the key by which
`registry`, which names all tasks, decides whether it may be trained on.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random

from models.training import vocabulary as words

BEGIN, END = "<|begin|>", "<|end|>"
SYSTEM, USER, ASSISTANT, TOOL = "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"


@dataclass(frozen=True, slots=True)
class Turn:
    """What the model reads, and what it is to write then (without the end marker)."""

    prompt: str
    answer: str


@dataclass(frozen=True, slots=True)
class Dialogue:
    """One problem. `key` names it independently of its wording; every turn's prompt follows the previous answer.

    `opening` is what the chat begins with before the first turn: the tools that it was given.
    """

    key: str
    turns: tuple[Turn, ...]
    opening: str = ""


def ask(question: str) -> str:
    """The prompt of a user's question."""
    return f"{USER}{question}{ASSISTANT}"


def tool_result(result: str) -> str:
    """The prompt that hands a tool's result to the model."""
    return f"{TOOL}{result}{ASSISTANT}"


def tool_call(name: str, /, **arguments: str | int) -> str:
    """The JSON that calls tool `name`."""
    return json.dumps({"name": name, "arguments": arguments})


def scratchpad(a: int, b: int) -> str:
    """Column addition from the right, `x+y+carry=sum` each, then the result: `4+8+0=12 7+8+1=16 3+5+1=09 so 962`."""
    columns, carry = [], 0
    for place in range(len(str(max(a, b)))):
        x, y = a // 10**place % 10, b // 10**place % 10
        total = x + y + carry
        columns.append(f"{x}+{y}+{carry}={total:02d}")
        carry = total // 10
    return f"{' '.join(columns)} so {a + b}"


def _operands(rng: Random) -> tuple[int, int, str]:
    a, b = words.number(rng), words.number(rng)
    return a, b, f"add {min(a, b)} {max(a, b)}"


def add_bare(rng: Random) -> Dialogue:
    """Addition as plain text completion: `374+588=`."""
    a, b, key = _operands(rng)
    prompt = rng.choices((f"{a}+{b}=", f"{a} + {b} ="), weights=(3, 1))[0]
    return Dialogue(key, (Turn(prompt, " " + scratchpad(a, b)),))


def add_chat(rng: Random) -> Dialogue:
    """Addition as a question in a chat."""
    a, b, key = _operands(rng)
    question = rng.choice((
        f"What is {a}+{b}?", f"What is {a}+{b}?", f"What is {a} + {b}?", f"What is {a} plus {b}?", f"{a}+{b}=",
        f"{a} + {b} = ?", f"{a}+{b}", f"Add {a} and {b}.", f"Please add {a} and {b}.", f"Compute {a}+{b}.",
        f"Calculate {a} + {b}", f"How much is {a}+{b}?", f"How much is {a} plus {b}?", f"Sum {a} and {b}.",
        f"What's {a}+{b}?", f"What's {a} plus {b}?",
    ))  # fmt: skip
    return Dialogue(key, (Turn(ask(question), scratchpad(a, b)),))


def lookup(rng: Random) -> Dialogue:
    """A call of the tool `lookup`, then a sentence with its result."""
    entity, attribute, value = words.name(rng), rng.choice(words.ATTRIBUTES), words.number(rng)
    question = rng.choice((
        f"What is the {attribute} of {entity}?", f"Tell me the {attribute} of {entity}.",
        f"Find the {attribute} of {entity}.", f"Look up the {attribute} of {entity}.",
        f"What's the {attribute} of {entity}?",
    ))  # fmt: skip
    return Dialogue(f"lookup {entity} {attribute}", (
        Turn(ask(question), tool_call("lookup", entity=entity, attribute=attribute)),
        Turn(tool_result(str(value)), f"The {attribute} of {entity} is {value}."),
    ))  # fmt: skip


def weather(rng: Random) -> Dialogue:
    """A call of the tool `weather`, then a sentence with the JSON that it returned."""
    place, degrees, sky = words.city(rng), rng.randrange(40), rng.choice(words.SKIES)
    question = rng.choice((
        f"What is the weather in {place}?", f"How is the weather in {place}?", f"Tell me the weather in {place}.",
        f"What's the weather in {place}?", f"What is the weather like in {place}?",
        f"What's the weather like in {place}?",
    ))  # fmt: skip
    result = json.dumps({"degrees": degrees, "sky": sky})
    return Dialogue(f"weather {place}", (
        Turn(ask(question), tool_call("weather", city=place)),
        Turn(tool_result(result), f"It is {degrees} degrees in {place}, with {sky}."),
    ))  # fmt: skip


def clock(rng: Random) -> Dialogue:
    """A call of the tool `clock`, then a sentence with the time that it returned."""
    place, time = words.city(rng), f"{rng.randrange(24):02d}:{rng.randrange(60):02d}"
    question = rng.choice((
        f"What time is it in {place}?", f"Tell me the time in {place}.", f"What is the time in {place}?",
        f"What's the time in {place}?",
    ))  # fmt: skip
    return Dialogue(f"clock {place}", (
        Turn(ask(question), tool_call("clock", city=place)),
        Turn(tool_result(time), f"It is {time} in {place}."),
    ))  # fmt: skip


CLOSE_RESULTS_SHARE = 0.3


def compare(rng: Random) -> Dialogue:
    """Two calls of `lookup`, one after the other, then a sentence with both results that says which is higher."""
    first, second = words.name(rng), words.name(rng)
    attribute, x = rng.choice(words.ATTRIBUTES), words.number(rng)
    y = words.number_near(rng, x) if rng.random() < CLOSE_RESULTS_SHARE else words.number(rng)
    verdict = "they are equal" if x == y else f"the {'first' if x > y else 'second'} is higher"
    question = rng.choice(
        (
            f"Compare the {attribute} of {first} and {second}.",
            f"Which has the higher {attribute}, {first} or {second}?",
        )
    )
    return Dialogue(
        f"compare {first} {second} {attribute}",
        (
            Turn(ask(question), tool_call("lookup", entity=first, attribute=attribute)),
            Turn(tool_result(str(x)), tool_call("lookup", entity=second, attribute=attribute)),
            Turn(tool_result(str(y)), f"The {attribute} of {first} is {x} and that of {second} is {y}, so {verdict}."),
        ),
    )


def fill_schema(rng: Random) -> Dialogue:
    """A JSON object for a schema of 1 to 5 fields in any order, from a text that may say more than is asked for."""
    who, age, place = words.name(rng), rng.randint(1, 99), words.city(rng)
    job, pet, color = rng.choice(words.JOBS), rng.choice(words.PETS), rng.choice(words.COLORS)
    facts: dict[str, tuple[str, str | int, str]] = {
        "age": ("integer", age, rng.choice((f"is {age} years old", f"is {age}"))),
        "city": ("string", place, rng.choice((f"lives in {place}", f"is from {place}"))),
        "job": ("string", job, rng.choice((f"works as a {job}", f"is a {job}"))),
        "pet": ("string", pet, f"has a {pet}"),
        "color": ("string", color, f"likes {color}"),
    }
    told = rng.sample(sorted(facts), rng.randint(1, 4))
    clauses = [facts[field][2] for field in told]
    text = f"{who} {clauses[0]}." if len(clauses) == 1 else f"{who} {', '.join(clauses[:-1])} and {clauses[-1]}."
    asked = rng.sample(["name", *told], rng.randint(1, len(told) + 1))
    schema = json.dumps({field: "string" if field == "name" else facts[field][0] for field in asked})
    answer = json.dumps({field: who if field == "name" else facts[field][1] for field in asked})
    prompt = rng.choice(
        (f"Fill {schema}: {text}", f"Fill the schema {schema} from: {text}", f"Schema: {schema} Text: {text}")
    )
    return Dialogue(f"fill {schema} {sorted(clauses)} {who}", (Turn(ask(prompt), answer),))


def sort_numbers(rng: Random) -> Dialogue:
    """Up to five numbers below 100, in ascending order."""
    count = rng.choices(range(1, 6), weights=(1, 4, 6, 8, 12))[0]
    numbers = [words.number(rng, max_digits=2) for _ in range(count)]
    listed = rng.choice((", ", ", ", " ")).join(map(str, numbers))
    question = rng.choice(
        (f"Sort {listed}.", f"Sort: {listed}", f"Sort these numbers: {listed}", f"Put in order: {listed}.")
    )
    ordered = sorted(numbers)
    return Dialogue(f"sort {ordered}", (Turn(ask(question), ", ".join(map(str, ordered))),))


def outline(rng: Random) -> Dialogue:
    """A numbered outline of 2 to 5 points; which points is free, so sampling gives different ones."""
    count, subject = rng.randint(2, 5), words.topic(rng)
    aspects = [words.ASPECTS[i] for i in sorted(rng.sample(range(len(words.ASPECTS)), count))]
    question = rng.choice((
        f"Outline {count} points about {subject}.", f"Write an outline of {count} points about {subject}.",
        f"List {count} points about {subject}.",
    ))  # fmt: skip
    points = (f"{i}. The {aspect} of {subject}." for i, aspect in enumerate(aspects, start=1))
    return Dialogue(f"outline {count} {subject}", (Turn(ask(question), "\n".join(points)),))


def expand(rng: Random) -> Dialogue:
    """A sentence on one point of an outline, with many possible answers."""
    aspect, subject = rng.choice(words.ASPECTS), words.topic(rng)
    point = f"The {aspect} of {subject}."
    question = rng.choice((f"Expand: {point}", f"Write a sentence about this point: {point}"))
    opening, judgement = rng.choice(words.OPENINGS), rng.choice(words.JUDGEMENTS)
    verb = "are" if aspect.endswith("s") else "is"
    answer = f"{opening} the {aspect} of {subject} {verb} {judgement}, {rng.choice(words.CLOSINGS)}."
    return Dialogue(f"expand {aspect} {subject}", (Turn(ask(question), answer[0].upper() + answer[1:]),))


def greet(rng: Random) -> Dialogue:
    """A greeting, answered by what the model can do."""
    who = words.name(rng)
    hello = rng.choice(("Hello", "Hi", "Hey"))
    said, called = rng.choice((
        (f"{hello}, I am {who}.", f", {who}"), (f"{hello}! My name is {who}.", f", {who}"),
        (f"{hello}!", ""), (hello, ""), ("Who are you?", ""), ("What can you do?", ""), ("Help", ""),
    ))  # fmt: skip
    answer = f"Hello{called}! I can add and sort numbers, call tools, fill JSON and write outlines."
    # Without a name there is nothing to hold out: these few questions are always trained on, so never evaluated.
    return Dialogue(f"greet{called}", (Turn(ask(said), answer),))
