"""Hints for slips whose exception does not say what to write instead: a wrong `await`, a name, an argument."""

from __future__ import annotations

import re
from collections.abc import Container

from inferlet._hints import pie
from inferlet._hints.sandbox import chain
from inferlet.errors import InvalidArgument

_PENDING = re.compile(
    r"""_asyncio\.Future|(?:'|"|not |<|got )(?:Future|Answer|Received|coroutine)\b"""
    r"""|\b(?:Future|Answer|Received|coroutine) found"""
)
_NEVER_AWAITED = re.compile(
    r"(?:object |')(NoneType|list|int|str|Queue|Context|Generation)"
    r"(?:' object can't be awaited| can't be used in 'await')"
)
_NO_COROUTINE = re.compile("coroutine was expected, got <(Future|Answer|Received|function)")
_KEYWORD = re.compile(r"generate(?:_until)?\(\) got an unexpected keyword argument '(\w+)'")

_AWAIT = "A call's result comes with `await`: `value = await call(...)`."
_NO_AWAIT = "This call returns at once: leave out `await`."
_FOR = "Pieces come with `async for piece in ctx.generate(...)`; `await ctx.generate_until(...)` gives the whole text."
_TASK = (
    "A call runs from the moment it is made: `await` it, or give it to `asyncio.gather`; a task takes an `async def`."
)
_FORKS = "`fork` gives a list of contexts: `[other] = ctx.fork()`."
_OF_A_CONTEXT = re.compile(r"'list' object has no attribute '(?:generate(?:_until)?|fill(?:_tokens)?|chat|flush|fork)'")
_CALLED = "A task takes what the function gives when it is called: `create_task(name())`."
_KINDS = (TypeError, AttributeError, ValueError, RuntimeError, InvalidArgument)
_INSTEAD = {
    "temperature": "sampler=Temperature(0.7)",
    "top_k": "sampler=TopK(40)",
    "top_p": "sampler=TopP(0.9)",
    "min_p": "sampler=MinP(0.05)",
    "seed": "sampler=Sampler(temperature=0.7, seed=1)",
    "until": "Until('end')",
    "stop_tokens": "StopTokens([2])",
    "stop_strings": "Until('end')",
    "length": "max_tokens=20",
    "n": "max_tokens=20",
    "json_schema": "grammar=json_schema(SCHEMA)",
    "regex": "grammar=regex(TEXT)",
    "lark": "grammar=lark(TEXT)",
    "ebnf": "grammar=ebnf(TEXT)",
}


def hint(error: BaseException, names: Container[str] = ()) -> str:
    """Say what to write instead; "" if there is nothing to add.

    Args:
        error: the failure.
        names: the public names of the SDK, which a program may have forgotten to import.

    Example:
        >>> hint(TypeError("object of type '_asyncio.Future' has no len()"))
        "A call's result comes with `await`: `value = await call(...)`."
        >>> hint(TypeError("'NoneType' object can't be awaited"))
        'This call returns at once: leave out `await`.'
        >>> hint(TypeError("generate() got an unexpected keyword argument 'top_k'"))
        'Give `sampler=TopK(40)`.'
        >>> hint(TypeError("generate_until() got an unexpected keyword argument 'json_schema'"))
        'Give `grammar=json_schema(SCHEMA)`.'
        >>> hint(TypeError("unsupported operand type(s) for +: 'int' and 'str'"))
        ''
    """
    for cause in chain(error, set()):
        if isinstance(cause, NameError) and cause.name in names:
            return f"Write `from inferlet import {cause.name}` at the top."
        if isinstance(cause, (ImportError, AttributeError)) and (text := pie.hint(str(cause))):
            return text
        if isinstance(cause, _KINDS) and (text := _hint(str(cause))):
            return text
    return ""


def _hint(told: str) -> str:
    if (
        "Generation' object is not iterable" in told
        or "requires an object with __aiter__ method, got coroutine" in told
    ):
        return _FOR
    if _OF_A_CONTEXT.search(told):
        return _FORKS
    if found := _NEVER_AWAITED.search(told):
        return _FOR if found[1] == "Generation" else _NO_AWAIT
    if found := _NO_COROUTINE.search(told):
        return _TASK if found[1] != "function" else _CALLED
    if found := _KEYWORD.search(told):
        return f"Give `{_INSTEAD[found[1]]}`." if found[1] in _INSTEAD else ""
    return _AWAIT if _PENDING.search(told) or told == "await wasn't used with future" else ""
