"""Where a setting comes from: file < environment < flag, and no typo goes unseen."""

from __future__ import annotations

from pathlib import Path

import pytest

from tartlet_common.config import load
from tartlet_common.errors import InvalidConfig
from tartlet_common.settings import ControlSettings


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "tartlet.toml"
    path.write_text(text)
    return path


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    file = _file(tmp_path, '[control]\npolicy = "eager"\npolicy_k = 2\nsteps_in_flight = 3\n')
    env = {"TARTLET_CONTROL_POLICY_K": "5", "TARTLET_CONTROL_STEPS_IN_FLIGHT": "4", "HOME": "/nowhere"}
    loaded = load(ControlSettings, "control", file=file, env=env, flags={"steps_in_flight": "1", "policy_t_s": None})
    s = loaded.settings
    assert (s.policy, s.policy_k, s.steps_in_flight, s.policy_t_s) == ("eager", 5, 1, 0.016)
    origins = [loaded.origins[k] for k in ("policy", "policy_k", "steps_in_flight", "policy_t_s")]
    assert origins == [f"file {file}", "environment", "flag", "default"]


@pytest.mark.parametrize(
    ("text", "env", "said"),
    [
        ("[control]\npolicies = 1\n", {}, "policies"),
        ("", {"TARTLET_CONTROL_POLICIES": "1"}, "TARTLET_CONTROL_POLICIES"),
        ('[control]\npolicy = "fast"\n', {}, "policy"),
        ("[control]\nsteps_in_flight = 0\n", {}, "steps_in_flight"),
        ("control = 3\n", {}, "table"),
        ("[control\n", {}, "tartlet.toml"),
    ],
)
def test_a_mistake_is_refused_and_named(tmp_path: Path, text: str, env: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        load(ControlSettings, "control", file=_file(tmp_path, text), env=env)


def test_a_missing_file_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="nowhere"):
        load(ControlSettings, "control", file=tmp_path / "nowhere.toml")
