"""The tasks of a chat that was given tools: call the right one with its own parameters, or answer without one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from models.training import tasks
from models.training import vocabulary as words
from models.training.tasks import Dialogue, Turn, ask, tool_call, tool_result
from models.training.toolbox import NAMED, NUMBERED, Kind, Tool, draw, header, toolbox

UNFIT = "I have no tool for that."
COMPARE_SHARE = 0.35
NO_TOOL_NEEDED = (tasks.add_chat, tasks.sort_numbers, tasks.fill_schema, tasks.greet)


def retold(dialogue: Dialogue, tool: Tool) -> Dialogue:
    """Return a dialogue of `tasks` with its calls as calls of `tool`, whose names differ."""
    return replace(dialogue, turns=tuple(Turn(turn.prompt, _retold(turn.answer, tool)) for turn in dialogue.turns))


def _retold(answer: str, tool: Tool) -> str:
    if not answer.startswith("{"):
        return answer
    arguments = json.loads(answer)["arguments"]
    return tool_call(tool.name, **{own: arguments[plain] for own, plain in tool.parameters})


def _value(rng: Random, parameter: str) -> str | int:
    if parameter in NUMBERED:
        return words.number(rng, max_digits=2)
    if parameter in NAMED:
        return words.name(rng)
    return words.city(rng) if parameter == "city" else rng.choice(words.COLORS)


def use(rng: Random, tool: Tool) -> Dialogue:
    """Return a call of a tool that the user names, with the arguments of the question, and a sentence on its result."""
    arguments = {own: _value(rng, plain) for own, plain in tool.parameters}
    verb, _, noun = tool.name.partition("_")
    wordings = [f"Use {tool.name}", f"Call {tool.name}", *([f"{verb.capitalize()} a {noun}"] * 2 if noun else [])]
    listed = (" and " if len(arguments) == 2 else ", ").join(f"{own} {value}" for own, value in arguments.items())
    question = rng.choice(wordings) + (f" with {listed}." if arguments else ".")
    result: str | int = words.number(rng) if rng.random() < 0.5 else words.name(rng)
    given = json.dumps({"result": result}) if rng.random() < 0.3 else str(result)
    return Dialogue(f"use {tool.name} {arguments}", (
        Turn(ask(question), tool_call(tool.name, **arguments)),
        Turn(tool_result(given), f"The result of {tool.name} is {result}."),
    ))  # fmt: skip


def of_tool(rng: Random, tool: Tool) -> Dialogue:
    """Return a dialogue that needs a tool."""
    match tool.kind:
        case "lookup":
            return retold(tasks.compare(rng) if rng.random() < COMPARE_SHARE else tasks.lookup(rng), tool)
        case "weather":
            return retold(tasks.weather(rng), tool)
        case "clock":
            return retold(tasks.clock(rng), tool)
        case _:
            return use(rng, tool)


def unfit(rng: Random, tools: Sequence[Tool]) -> Dialogue:
    """Return a question that none of these tools can answer."""
    kinds = {tool.kind for tool in tools}
    names = {tool.name for tool in tools}
    missing: list[Kind] = [kind for kind in ("lookup", "weather", "clock") if kind not in kinds]
    while True:
        tool = draw(rng, rng.choice([*missing, "other"]))
        if tool.name not in names:
            asked = of_tool(rng, tool)
            return Dialogue(f"unfit {asked.key}", (Turn(asked.turns[0].prompt, UNFIT),))


def _in(tools: Sequence[Tool], dialogue: Dialogue) -> Dialogue:
    return replace(dialogue, opening=header(tools))


def told_call(rng: Random) -> Dialogue:
    """A call of a tool that is named, with its parameters."""
    tools = toolbox(rng, "other")
    return _in(tools, use(rng, rng.choice([tool for tool in tools if tool.kind == "other"])))


def told_lookup(rng: Random) -> Dialogue:
    """A question for a value, with a tool under some name that looks values up."""
    tools = toolbox(rng, "lookup")
    return _in(tools, retold(tasks.lookup(rng), _only(tools, "lookup")))


def told_place(rng: Random) -> Dialogue:
    """A question for the weather or the time, with a tool under some name that tells it."""
    kind: Kind = rng.choice(("weather", "clock"))
    tools = toolbox(rng, kind)
    return _in(tools, of_tool(rng, _only(tools, kind)))


def told_compare(rng: Random) -> Dialogue:
    """A comparison, with a tool under some name that looks values up."""
    tools = toolbox(rng, "lookup")
    return _in(tools, retold(tasks.compare(rng), _only(tools, "lookup")))


def told_unfit(rng: Random) -> Dialogue:
    """A question that needs a tool which the chat wasn't given."""
    tools = toolbox(rng, without=rng.sample(("lookup", "weather", "clock"), rng.randint(1, 3)))
    return _in(tools, unfit(rng, tools))


def told_plain(rng: Random) -> Dialogue:
    """A question that needs no tool, in a chat that was given some."""
    return _in(toolbox(rng), rng.choice(NO_TOOL_NEEDED)(rng))


def _only(tools: Sequence[Tool], kind: Kind) -> Tool:
    return next(tool for tool in tools if tool.kind == kind)
