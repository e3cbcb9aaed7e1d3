"""Builds the C kernels where there is a compiler, and shows the seed of a test that fails."""

from __future__ import annotations

import os
from collections.abc import Generator
from importlib.util import find_spec

import pytest
import torch

from tartlet_worker.kernels.build import NotBuilt, build
from tests.worker import flashinfer_shadow, triton_rounding
from tests.worker.seeds import SEED, seed_of


@pytest.fixture(scope="session", autouse=True)
def _kernels() -> None:
    try:
        build()
    except NotBuilt:
        return


@pytest.fixture(scope="session", autouse=True)
def _flashinfer() -> Generator[None]:
    """Let engines on the CPU attend by FlashInfer's shadow, unless a GPU may run the real one."""
    with pytest.MonkeyPatch.context() as patch:
        if not torch.cuda.is_available():
            flashinfer_shadow.install(patch)
        yield


@pytest.fixture(scope="session", autouse=True)
def _interpreter() -> Generator[None]:
    """Let Triton's interpreter round as devices do."""
    with pytest.MonkeyPatch.context() as patch:
        if os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton"):
            triton_rounding.install(patch)
        yield


@pytest.fixture(autouse=True)
def _torch_seed(request: pytest.FixtureRequest) -> None:
    torch.manual_seed(seed_of(request.node.nodeid))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the seed to the report of a test that failed."""
    report = yield
    if report.failed:
        report.sections.append(("random numbers", f"TARTLET_TEST_SEED={SEED} draws the same ones again"))
    return report
