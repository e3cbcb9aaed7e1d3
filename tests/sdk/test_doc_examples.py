"""The examples in the SDK's docstrings do what they say: expressions as doctests, `main` functions as programs."""

from __future__ import annotations

import asyncio
import contextlib
import doctest
import importlib
import inspect
import io
import pkgutil
from functools import partial

import pytest

import inferlet
from tests.sdk.host.harness import run
from tests.sdk.host.mini_host import MiniHost


def examples() -> list[doctest.DocTest]:
    """Every docstring with an example, of every module but the one that opens sockets."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    names = [m.name for m in pkgutil.walk_packages(inferlet.__path__, "inferlet.")]
    modules = [inferlet, *map(importlib.import_module, names)]
    found = {t.name: t for m in modules for t in finder.find(m) if t.examples}
    return list(found.values())


EXAMPLES = examples()


@pytest.mark.parametrize("name", sorted(set(inferlet.__all__) - {"errors", "Message", "Tool"}))  # a module, two dicts
def test_every_public_name_shows_how_it_is_used(name: str) -> None:
    assert doctest.DocTestParser().get_examples(getattr(inferlet, name).__doc__), f"{name} has no example of its own"


@pytest.mark.parametrize("test", EXAMPLES, ids=lambda t: t.name)
def test_an_example_does_what_it_says(test: doctest.DocTest) -> None:
    names = {**vars(inferlet), **test.globs, "asyncio": asyncio}
    checker = doctest.OutputChecker()
    for example in test.examples:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            if example.source.startswith("async def main"):
                exec(compile(example.source, test.name, "exec"), names)
                main = names["main"]  # it may take the program's arguments, as in the sandbox
                takes_arguments = bool(inspect.signature(main).parameters)
                try:
                    run(MiniHost(page_size=16), partial(main, []) if takes_arguments else main)
                except SystemExit as end:
                    assert end.code == 0  # noqa: PT017 - so a program ends well
            else:
                exec(compile(example.source, test.name, "single"), names)
        assert checker.check_output(example.want, out.getvalue(), 0), f"{example.source}gave {out.getvalue()!r}"
