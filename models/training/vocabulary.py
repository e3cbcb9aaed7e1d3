"""Names, places and phrases that the task generators draw from."""

from __future__ import annotations

import string
from random import Random

SYLLABLES = (
    "ka", "ro", "mi", "ten", "lu", "va", "so", "pe", "dra", "no", "fi", "gu", "bel", "tor", "an", "is",
    "el", "mar", "ni", "chi", "jo", "ha", "ry", "wen", "zu", "ber", "co", "qui", "ly", "ax",
)  # fmt: skip
FIRST_NAMES = (
    "Ada", "Alan", "Alice", "Anna", "Ben", "Bob", "Carol", "Clara", "Dan", "David", "Emma", "Eve", "Frank", "Grace",
    "Hana", "Henry", "Ivan", "Jack", "Jane", "John", "Kim", "Laura", "Leo", "Lucy", "Maria", "Mary", "Max", "Nina",
    "Omar", "Paul", "Peter", "Rosa", "Sam", "Sara", "Tom", "Uma", "Vera", "Wei", "Yuki", "Zoe",
)  # fmt: skip
CITIES = (
    "Paris", "Oslo", "Lima", "Cairo", "Delhi", "Quito", "Rome", "Tokyo", "Seoul", "London", "Berlin", "Madrid",
    "Boston", "Lagos", "Sydney", "Vienna", "Dublin", "Athens", "Hanoi", "Nairobi",
)  # fmt: skip
ATTRIBUTES = ("price", "height", "weight", "age", "score", "speed", "size", "rank")
SKIES = ("sun", "rain", "snow", "fog", "wind", "clouds")
JOBS = ("baker", "nurse", "pilot", "teacher", "singer", "farmer", "lawyer", "doctor", "painter", "driver")
PETS = ("cat", "dog", "horse", "parrot", "rabbit", "turtle", "goat", "snake")
COLORS = ("red", "blue", "green", "black", "white", "yellow", "purple", "orange")
ADJECTIVES = (
    "green", "old", "modern", "wild", "cheap", "urban", "small", "local", "hot", "classic", "slow", "solar",
)  # fmt: skip
TOPICS = (
    "tea", "rain", "music", "trains", "gardens", "bread", "books", "ships", "bridges", "coffee", "chess", "maps",
    "clocks", "bicycles", "cities", "paper", "rivers", "robots", "schools", "museums", "birds", "glass", "salt",
    "forests",
)  # fmt: skip
# Outlines take a subset of these, in this order.
ASPECTS = ("history", "origin", "uses", "kinds", "makers", "costs", "benefits", "risks", "care", "future")
OPENINGS = ("people know that", "it is said that", "experts agree that", "most of us find that", "books tell us that")
JUDGEMENTS = ("long", "simple", "rich", "hard to describe", "full of surprises", "well known", "often forgotten")
CLOSINGS = ("and worth a closer look", "and still changing", "but easy to learn", "and different everywhere")
SYSTEM_PROMPTS = (
    "You are a helpful assistant.", "Answer briefly.", "Be concise.", "You can call tools.", "You are Tartlet.",
)  # fmt: skip


def name(rng: Random) -> str:
    """A capitalised name: of syllables, a common one, or at times random letters, so that copying is learned.

    No part comes twice in a name: copying what repeats needs a larger model.
    """
    kind = rng.random()
    if kind < 0.3:
        return rng.choice(FIRST_NAMES)
    if kind < 0.38:
        return "".join(rng.sample(string.ascii_lowercase, rng.randint(2, 5))).capitalize()
    return "".join(rng.sample(SYLLABLES, rng.choices((2, 3), weights=(2, 1))[0])).capitalize()


def city(rng: Random) -> str:
    """A city: a known one or a made-up name."""
    return rng.choice(CITIES) if rng.random() < 0.5 else name(rng)


def topic(rng: Random) -> str:
    """A topic such as `rain` or `green tea`."""
    noun = rng.choice(TOPICS)
    return noun if rng.random() < 0.2 else f"{rng.choice(ADJECTIVES)} {noun}"


def number(rng: Random, max_digits: int = 3) -> int:
    """A number of 1 to `max_digits` digits; longer ones come more often, as there are more of them."""
    digits = rng.choices(range(1, max_digits + 1), weights=range(1, max_digits + 1))[0]
    return rng.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits)


def number_near(rng: Random, number: int) -> int:
    """A number of as many digits that starts as `number` does: what is hard to tell from it."""
    text = str(number)
    same = rng.randrange(len(text))
    tail = "".join(rng.choice("0123456789") for _ in text[same + (same == 0) :])
    return int((text[:same] or rng.choice("123456789")) + tail)
