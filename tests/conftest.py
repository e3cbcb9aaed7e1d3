"""Fixtures and settings of all tests."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.books import (  # noqa: F401 - hooks of pytest
    pytest_configure,
    pytest_runtest_teardown,
    pytest_terminal_summary,
    pytest_unconfigure,
)
from tests.run_directory import run_directory

# A test and its processes share two cores, on which further threads would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Triton's kernels run in its interpreter, which `make test-gpu` turns off. Triton reads this at its first import.
os.environ.setdefault("TRITON_INTERPRET", "1")
# Without cached bytecode each process that a test starts compiles all its modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Tests fetch nothing: models, tokenizers and programs are in the repository, or a test makes them.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"

REPO = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def repo() -> Path:
    """The root of the checkout."""
    return REPO


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """A private directory (mode 0700) for Unix sockets, with a short path."""
    with run_directory() as path:
        yield path


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test that is a coroutine function on a new event loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.function):
        return None
    wanted = inspect.signature(pyfuncitem.function).parameters
    asyncio.run(pyfuncitem.function(**{name: pyfuncitem.funcargs[name] for name in wanted}))
    return True
