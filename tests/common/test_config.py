"""Where a setting comes from: file < environment < flag, and no typo goes unseen."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from tartlet_common.config.load import add_flags, load
from tartlet_common.config.paths import make_private
from tartlet_common.config.settings import ROLES, ControlSettings, OperatorSettings, WorkerSettings
from tartlet_common.errors.registry import InvalidConfig


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "tartlet.toml"
    path.write_text(text)
    return path


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    file = _file(tmp_path, '[control]\nbatching = "eager"\nbatching_k = 2\nsteps_in_flight = 3\n')
    env = {"TARTLET_CONTROL_BATCHING_K": "5", "TARTLET_CONTROL_STEPS_IN_FLIGHT": "4", "HOME": "/nowhere"}
    loaded = load(ControlSettings, "control", file=file, env=env, flags={"steps_in_flight": "1", "batching_t_s": None})
    s = loaded.settings
    assert (s.batching, s.batching_k, s.steps_in_flight, s.batching_t_s) == ("eager", 5, 1, 0.016)
    origins = [loaded.origins[k] for k in ("batching", "batching_k", "steps_in_flight", "batching_t_s")]
    assert origins == [f"file {file}", "environment", "flag", "default"]


@pytest.mark.parametrize(
    ("text", "env", "said"),
    [
        ("[control]\nbatchings = 1\n", {}, "tartlet.toml: there is no setting 'batchings' (did you mean 'batching'?)"),
        ("", {"TARTLET_CONTROL_BATCHINGS": "1"}, "TARTLET_CONTROL_BATCHINGS (did you mean 'batching'?)"),
        ("[control]\npolicy = 1\n", {}, "there is no setting 'policy' (it is called 'batching' now)"),
        ("[control]\npolicy_t_s = 1\n", {}, "there is no setting 'policy_t_s' (it is called 'batching_t_s' now)"),
        ("", {"TARTLET_CONTROL_POLICY_K": "1"}, "TARTLET_CONTROL_POLICY_K (it is called 'batching_k' now)"),
        ('[control]\nbatching = "fast"\n', {}, "tartlet.toml), but must be one of adaptive, eager, k-only, t-only"),
        ("[control]\nsteps_in_flight = 0\n", {}, "steps_in_flight is 0 ("),
        ("", {"TARTLET_CONTROL_BATCHING_K": "x"}, "'x' (from environment), but must be a whole number from 1 to 65536"),
        ("[control]\nbatching_t_s = 0\n", {}, "batching_t_s is 0 ("),
        ("[control]\nprogram_pages = 1.5\n", {}, "but must be a whole number at least 0"),
        ("[control]\ncatalogue_dir = 3\n", {}, "but must be a path"),
        ("[control]\naddress = false\n", {}, "but must be text"),
        ("control = 3\n", {}, "control must be a table, [control]"),
        (
            "[contorl]\nbatching_k = 3\n",
            {},
            "unknown table [contorl] (did you mean 'control'?); known: [control], [runtime]",
        ),
        ("[scheduler]\n", {}, "unknown table [scheduler]; known: [control], [runtime]"),
        ("batching_k = 3\n", {}, "batching_k is outside every table; put it below the table of its role"),
        ("[control\n", {}, "tartlet.toml: Expected ']'"),
    ],
)
def test_a_mistake_is_refused_and_named(tmp_path: Path, text: str, env: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidConfig, match=re.escape(said)):
        load(ControlSettings, "control", file=_file(tmp_path, text), env=env)


@pytest.mark.parametrize("hosts", ["https://example.org/", "example.org/a", "a.example.org, me@example.org"])
def test_hosts_that_are_urls_are_refused_and_told_as_such(hosts: str) -> None:
    with pytest.raises(InvalidConfig, match=r"source_hosts is .* but must be hosts, not URLs, such as example\.org"):
        load(OperatorSettings, "operator", flags={"source_hosts": hosts})
    for good in ("example.org", "*.example.org:8443, [::1]:80", ""):
        assert load(OperatorSettings, "operator", flags={"source_hosts": good}).settings.source_hosts == good


def test_a_variable_of_almost_a_role_is_refused_and_others_are_not_ours() -> None:
    others = {"TARTLET_RUN_DIR": "/x", "TARTLET_SERVER": "local", "TARTLET_CLIENT_TLS_KEY": "k", "TARTLET": "1"}
    assert load(WorkerSettings, "worker", env=others).settings == WorkerSettings()
    with pytest.raises(InvalidConfig, match=r"TARTLET_RUNTME_MEMORY_BYTES \(did you mean TARTLET_RUNTIME_...\?\)"):
        load(WorkerSettings, "worker", env=others | {"TARTLET_RUNTME_MEMORY_BYTES": "1"})


def test_all_mistakes_are_named_at_once(tmp_path: Path) -> None:
    file = _file(tmp_path, '[worker]\nbatch_invariant = "maybe"\nengine_id = "' + 254 * "e" + '"\nfake_step_s = -1\n')
    with pytest.raises(InvalidConfig) as e:
        load(WorkerSettings, "worker", file=file)
    for said in ("must be true or false; ", "must be text of at most 253 characters; ", "must be a number at least 0"):
        assert said in str(e.value)


def test_a_missing_file_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"nowhere\.toml: No such file or directory"):
        load(ControlSettings, "control", file=tmp_path / "nowhere.toml")


def test_the_help_says_what_a_setting_may_be() -> None:
    helps = {}
    for role, model in ROLES.items():
        parser = argparse.ArgumentParser()
        add_flags(parser, model)
        helps[role] = " ".join(parser.format_help().split())
    assert "[one of adaptive, eager, k-only, t-only]" in helps["control"]
    assert "[one of auto, shim, ctypes]" in helps["runtime"]
    assert "tokens of a KV page [a whole number from 1 to 32]" in helps["worker"]


def test_a_run_directory_that_cannot_be_made_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidConfig, match=r"can't make the directory .*/file/run: Not a directory") as e:
        make_private(tmp_path / "file" / "run")
    assert "TARTLET_RUN_DIR" in e.value.remedy
