"""What clients are told of models: those that their tenant may use, as control last told the runtime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tartlet_runtime.answers.models import ModelTable
from tartlet_runtime.budget.ledger import Ledger
from tests.runtime.fake_control import engine_spec
from tests.runtime.serving.test_durability import _no_task, _no_tokenizer, info, pool


def table(directory: Path) -> ModelTable:
    made = ModelTable(directory, _no_tokenizer, _no_task, Ledger(1 << 30))
    made.update(
        [
            info(0, "ours", "a", pool("slow", ready=False)),
            info(1, "ours", "b", pool("open", shared=True)),
            info(2, "theirs", "b", pool("closed")),
            info(3, "everyones", None, pool("")),
        ]
    )
    return made


def told(models: ModelTable, tenant: str | None) -> list[dict[str, Any]]:
    models_told: list[dict[str, Any]] = json.loads(models.told(tenant))["models"]
    return models_told


def test_a_tenant_is_told_of_the_models_that_it_may_use_and_whether_they_are_ready_for_it(tmp_path: Path) -> None:
    models = table(tmp_path)
    window = engine_spec(model="ours").max_position
    assert told(models, "a") == [
        {"name": "everyones", "ready": True, "max_position": window, "adapters": []},
        {"name": "ours", "ready": True, "max_position": window, "adapters": []},  # which b shares
        {"name": "ours", "ready": False, "max_position": window, "adapters": []},  # a's own, which comes back
    ]
    assert [each["name"] for each in told(models, "c")] == ["everyones", "ours"]
    assert [each["name"] for each in told(models, None)] == ["ours", "ours", "theirs", "everyones"]


def test_a_change_is_told_at_once(tmp_path: Path) -> None:
    models = table(tmp_path)
    assert len(told(models, "a")) == 3
    models.update([info(3, "everyones", None, pool("", ready=False))])
    assert [each["ready"] for each in told(models, "a")] == [False]
    models.update([])
    assert told(models, "a") == told(models, None) == []
