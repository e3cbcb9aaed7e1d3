"""How the answers of the image for CUDA are judged; the image itself is built by hand, because that takes long."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.cluster.artifacts import cuda_image

GOOD: dict[str, Any] = {
    "compilers": [], "network": False, "interfaces": ["lo"], "user": "10001:10001", "writable": ["/tmp"],
    "licence": True, "modules": {"one": 10, "two": 20}, "mapped": ["one", "two"], "loaded": {"64": "", "128": ""},
    "triton_lacks": "",
    "doctor": [{"name": "attention elsewhere", "status": "ok", "found": "on a GPU of capability 9.0: flashinfer: x"}],
    "worker": {"status": 1, "output": "InvalidConfig: no such device"},
    "run": {"status": 0, "output": "962"},
    "settings": {"user": "10001:10001", "labels": {"org.opencontainers.image.licenses": "Apache-2.0"}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "value", "said"),
    [
        ("compilers", ["/usr/bin/cc"], "compiler"),
        ("network", True, "network"),
        ("interfaces", ["lo", "eth0"], "eth0"),
        ("user", "0:0", "0:0"),
        ("writable", ["/opt", "/tmp"], "/opt"),
        ("licence", False, "licence"),
        ("modules", {"one": 10}, "two is missing"),
        ("mapped", ["one"], "two was not loaded"),
        ("loaded", {"64": "OSError", "128": ""}, "heads of 64"),
        ("triton_lacks", "no compiler", "Triton"),
        ("doctor", [], "doctor"),
        ("worker", {"status": 1, "output": "Traceback"}, "Traceback"),
        ("run", {"status": 1, "output": "Traceback"}, "Traceback"),
        ("settings", {"user": "0:0", "labels": GOOD["settings"]["labels"]}, "0:0"),
        ("settings", {"user": "10001:10001", "labels": {}}, "licence"),
    ],
)
def test_each_answer_is_judged(answer: str, value: Any, said: str) -> None:
    assert cuda_image.problems(GOOD, {"one", "two"}) == []
    (problem,) = cuda_image.problems(GOOD | {answer: value}, {"one", "two"})
    assert said in problem
