"""The command line: its help, and the commands that need a server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from tartlet._convert import limits_from_proto, limits_to_proto
from tartlet.events import Usage
from tartlet.model import NAME, Limits, ProgramInfo, RuntimeState
from tartlet_cli.commands.top import cut, screen
from tartlet_cli.console import exits
from tartlet_cli.main import _COMMANDS, cli
from tartlet_common.errors.registry import AddressInUse, InvalidArgument
from tartlet_control.serving.catalogue import _NAME
from tests.e2e.serving import PROGRAMS, Serving, command, environment, out, tartlet_cli

HELP_S = 0.15


def test_help_starts_quickly_and_imports_no_grpc(run_dir: Path) -> None:
    code = "import sys; from tartlet_cli.main import cli; cli(['-h'], standalone_mode=False); print(list(sys.modules))"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "'click'" in modules
    for heavy in ("grpc", "numpy", "pydantic", "opentelemetry", "asyncio", "rich"):
        assert f"'{heavy}'" not in modules, heavy

    def cpu_s() -> float:
        import resource

        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command("--help"), capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)

    assert min(cpu_s() for _ in range(5)) < HELP_S  # processor time: the machine may be busy


@pytest.mark.parametrize("name", sorted(_COMMANDS))
def test_every_command_has_help_with_an_example_or_is_trivial(name: str, run_dir: Path) -> None:
    text = out(run_dir, name, "--help")
    assert f"tartlet {name}" in text
    assert name == "version" or "Examples:" in text


def test_the_group_lists_what_it_can_import() -> None:
    import click

    context = click.Context(cli)
    for name in cli.list_commands(context):
        found = cli.get_command(context, name)
        assert found is not None
        assert found.name == name


def test_what_new_writes_runs_and_obeys_its_arguments(server: Serving, run_dir: Path) -> None:
    result = subprocess.run(
        command("new", "my_inferlet"), cwd=run_dir, env=environment(run_dir), capture_output=True, text=True, check=True
    )
    assert "tartlet run my_inferlet.py" in result.stdout
    file = str(run_dir / "my_inferlet.py")
    assert len(out(server.run_dir, "run", "--server", "local", file, "--max-tokens", "8").rstrip("\n")) == 8
    again = subprocess.run(command("new", "my_inferlet"), cwd=run_dir, capture_output=True, text=True, check=False)
    assert (again.returncode, "--force" in again.stderr) == (exits.USAGE, True)
    for name, named in (("1-2", "'1-2'"), ("a/b", "directory a:")):
        bad = subprocess.run(command("new", name), cwd=run_dir, capture_output=True, text=True, check=False)
        assert (bad.returncode, named in bad.stderr) == (exits.USAGE, True)


def test_config_tells_each_value_and_where_it_came_from(run_dir: Path) -> None:
    file = run_dir / "tartlet.toml"
    file.write_text('[worker]\npage_size = 8\nnum_slots = 64\n[control]\nbatching = "eager"\n')
    env = {"TARTLET_WORKER_NUM_SLOTS": "128"}
    document = json.loads(out(run_dir, "config", "--config", str(file), "--json", **env))
    worker = document["worker"]
    assert (worker["page_size"]["value"], worker["page_size"]["origin"]) == (8, f"file {file}")
    assert (worker["num_slots"]["value"], worker["num_slots"]["origin"]) == (128, "environment")
    assert worker["threads"]["origin"] == "default"
    assert document["control"]["batching"]["value"] == "eager"
    text = out(run_dir, "config", "worker", "--config", str(file), **env)
    assert "[worker]" in text
    assert "[control]" not in text
    assert out(run_dir, "config", "operator").startswith("[operator]")
    printed = out(run_dir, "config", **env)
    assert "# tls_certificate = " in printed  # unset
    assert f'\n# address = "unix:{run_dir}/control.sock"' in printed  # where the run directory is, now
    set_ = out(run_dir, "config", "control", TARTLET_CONTROL_ADDRESS="localhost:1")
    assert '\naddress = "localhost:1"' in set_
    copy = run_dir / "copy.toml"
    copy.write_text(printed)
    read_back = json.loads(out(run_dir, "config", "--config", str(copy), "--json"))
    assert {role: {key: entry["value"] for key, entry in table.items()} for role, table in read_back.items()} == {
        role: {key: entry["value"] for key, entry in table.items()}
        for role, table in json.loads(out(run_dir, "config", "--json", **env)).items()
    }
    file.write_text("[worker]\npage_sise = 8\n")
    refused = tartlet_cli(run_dir, "config", "--config", str(file))
    assert (refused.returncode, "page_sise" in refused.stderr) == (exits.USAGE, True)


def test_a_program_is_launched_listed_messaged_followed_and_killed(server: Serving) -> None:
    d = server.run_dir
    program = out(d, "launch", str(PROGRAMS / "echo.py")).strip()
    assert program in out(d, "ps")
    out(d, "send", program[:8], "one")
    deadline = time.monotonic() + 20
    while "echo one" not in (text := out(d, "logs", program[:8])):
        assert time.monotonic() < deadline
    assert text == "ready\necho one\n"
    subprocess.run(command("send", program), env=environment(d), input=b"stop", check=True)
    assert out(d, "attach", program) == "ready\necho one\nanswered 1\n"
    assert program not in out(d, "ps")
    for flag in ("--all", "--ended"):
        listed = [json.loads(line) for line in out(d, "ps", flag, "--json").splitlines()]
        assert [(p["state"], p["model"]) for p in listed if p["program_id"] == program] == [("succeeded", "fake")]

    many = out(d, "launch", "--count", "3", str(PROGRAMS / "waits.py")).split()
    assert len(set(many)) == 3
    out(d, "kill", "--reason", "tidy", *many[:2])
    out(d, "kill", "--all")
    last = out(d, "launch", str(PROGRAMS / "echo.py")).strip()
    some = tartlet_cli(d, "kill", "zzz", last)
    assert (some.returncode, some.stderr.startswith("UnknownProgram: no program zzz\n")) == (exits.USAGE, True)
    assert last not in out(d, "ps"), "the others end all the same"
    killed = tartlet_cli(d, "attach", many[0])
    assert killed.returncode == exits.PROGRAM_FAILED
    assert "tidy" in killed.stderr


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--max-memory", "-1"),
        ("--max-memory", str(1 << 44)),
        ("--max-pages", "-1"),
        ("--max-pages", "99999999999"),
        ("--deadline", "-1"),
        ("--deadline", "nan"),
        ("--deadline", "inf"),
        ("--offset", "-5"),
    ],
)
def test_a_number_out_of_range_is_a_usage_error(option: str, value: str) -> None:
    line = ["attach", "x"] if option == "--offset" else ["launch", str(PROGRAMS / "echo.py")]
    result = CliRunner().invoke(cli, [*line, option, value])
    assert (result.exit_code, option in result.output) == (exits.USAGE, True), result.output


@pytest.mark.parametrize(
    "limits",
    [Limits(pages=-1), Limits(pages=1 << 32), Limits(memory_bytes=1 << 64), Limits(deadline_s=float("nan"))],
)
def test_a_limit_that_no_launch_can_carry_is_an_invalid_argument(limits: Limits) -> None:
    with pytest.raises(InvalidArgument, match=r"limits\."):
        limits_to_proto(limits)
    largest = Limits(memory_bytes=(1 << 64) - 1, pages=(1 << 32) - 1, deadline_s=1e9)
    assert limits_from_proto(limits_to_proto(largest)) == largest


def test_an_empty_id_names_no_program_even_if_only_one_runs(server: Serving) -> None:
    program = out(server.run_dir, "launch", str(PROGRAMS / "waits.py")).strip()
    for args in (("attach", ""), ("logs", ""), ("send", "", "x"), ("kill", ""), ("kill", program, "")):
        result = tartlet_cli(server.run_dir, *args)
        assert (result.returncode, "empty" in result.stderr) == (exits.USAGE, True), args
    assert program in out(server.run_dir, "ps")
    out(server.run_dir, "kill", program)


def test_unknown_programs_are_usage_errors(server: Serving) -> None:
    for args in (("attach", "zzz"), ("send", "zzz", "x"), ("kill", "zzz"), ("logs", "zzz")):
        result = tartlet_cli(server.run_dir, *args)
        assert (result.returncode, "UnknownProgram" in result.stderr) == (exits.USAGE, True), args


def test_lines_of_standard_input_reach_the_program_one_attaches_to(server: Serving) -> None:
    program = out(server.run_dir, "launch", str(PROGRAMS / "echo.py")).strip()
    attached = subprocess.run(
        command("attach", "-i", "--quiet", program),
        env=environment(server.run_dir),
        input=b"a\nb\nstop\n",
        capture_output=True,
        check=True,
    )
    assert attached.stdout == b"ready\necho a\necho b\nanswered 2\n"


def test_a_program_that_waits_past_the_end_of_the_input_is_told_of(server: Serving) -> None:
    with subprocess.Popen(
        command("run", "--server", "local", "--interactive", str(PROGRAMS / "echo.py")),
        env=environment(server.run_dir),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stderr is not None
        assert "end of input" in running.stderr.readline()
        running.send_signal(signal.SIGINT)
        assert running.wait(20) == exits.INTERRUPTED


def test_the_catalogue_takes_what_the_sandbox_can_run_and_nothing_else(server: Serving, tmp_path: Path) -> None:
    file = tmp_path / "p.py"
    for source, said in (
        (b"def main():\nreturn 1\n", 'File "p.py", line 2'),
        (b"print(\n", 'File "p.py", line 1'),
        (b"\0asm\1\0\0\0rubbish", "CorruptModule"),
    ):
        file.write_bytes(source)
        refused = tartlet_cli(server.run_dir, "catalogue", "put", "p", str(file))
        assert (refused.returncode, refused.stdout) == (exits.PROGRAM_FAILED, "")
        assert said in refused.stderr
    file.write_text("type Pair[T] = tuple[T, T]\nx = t'{1}'\n")  # newer syntax than some clients know
    out(server.run_dir, "catalogue", "put", "q", str(file))
    assert [entry["name"] for entry in json.loads(out(server.run_dir, "catalogue", "list", "--json"))] == ["q"]
    out(server.run_dir, "catalogue", "delete", "q")


def test_engines_of_one_pool_are_told_apart_on_a_narrow_terminal() -> None:
    assert [cut(f"demo-7c9d8f6b5-x2x4{end}", 16) for end in "ab"] == ["demo-7c…b5-x2x4a", "demo-7c…b5-x2x4b"]
    assert cut("demo-7c9d8f6b5-x2x4a", 20) == "demo-7c9d8f6b5-x2x4a"
    named = {"model": "llama-3.2-1b-instruct", "state": "ready", "pools": {"kv_page": {"free": 16384, "total": 16384}}}
    rest: dict[str, Any] = {**named, "programs": 12, "in_flight": 3, "tokens_per_s": 1234.5}
    engines = [{"id": f"demo-7c9d8f6b5-x2x4{end}", **rest} for end in "ab"]
    state = RuntimeState("1", "", 0, 1, True, {"engines": engines}, "", "shim", 0, 0, "", {})
    console = Console(width=80)
    with console.capture() as shown:
        console.print(screen(state, [], console.width))
    assert "demo-7c…b5-x2x4a" in shown.get()
    assert "demo-7c…b5-x2x4b" in shown.get()


def test_top_has_rank_service_and_waiting_of_each_program() -> None:
    accounts = [{"id": f"program-{n}", "service_s": 0.25, "waited_s": 1.5 + n, "rank": n} for n in range(2)]
    state = RuntimeState("1", "", 0, 1, True, {"programs": accounts}, "", "shim", 0, 0, "", {})
    infos = [ProgramInfo(str(a["id"]), "agent.py", "running", "", 0.0, 0.0, Usage(), None, "", 0) for a in accounts]
    with (console := Console(width=140)).capture() as shown:
        console.print(screen(state, infos, console.width))
    head, *rows = shown.get().splitlines()[-3:]
    assert head.split()[-3:] == ["SERVICE", "WAITED", "RANK"]
    assert rows[0].split()[-4:] == ["0.25", "s", "1.5", "s"], "one that doesn't wait has no rank"
    assert rows[1].split()[-5:] == ["0.25", "s", "2.5", "s", "1"]


def test_models_top_and_doctor_describe_the_server(server: Serving) -> None:
    d = server.run_dir
    (model,) = json.loads(out(d, "models", "--json"))
    assert (model["name"], model["ready"], model["standby"], model["engines"]) == ("fake", True, False, 1)
    assert out(d, "models").splitlines()[1].split()[:3] == ["fake", "yes", "1"]
    document = json.loads(out(d, "top", "--once", "--json"))
    assert document["runtime"]["control_connected"] is True
    assert "control connected" in out(d, "top", "--once")
    checks = {check["name"]: check["status"] for check in json.loads(out(d, "doctor", "--json"))}
    assert (checks["runtime"], checks["control"], checks["engines"], checks["python"]) == ("ok",) * 4


def test_doctor_without_a_server_warns_and_says_what_to_do(run_dir: Path) -> None:
    checks = {check["name"]: check for check in json.loads(out(run_dir, "doctor", "--json"))}
    assert checks["runtime"]["status"] == "warn"
    assert "tartlet serve" in checks["runtime"]["remedy"]
    assert checks["device"]["found"].startswith("cpu")
    asked = tartlet_cli(run_dir, "doctor", "--json", TARTLET_WORKER_DEVICE="cuda:99")
    assert asked.returncode == exits.SYSTEM
    device = next(check for check in json.loads(asked.stdout) if check["name"] == "device")
    assert (device["status"], "TARTLET_WORKER_DEVICE=cpu" in device["remedy"]) == ("fail", True)


def test_doctor_says_which_setting_leaves_the_fast_path(run_dir: Path) -> None:
    asked = tartlet_cli(run_dir, "doctor", "--json", TARTLET_WORKER_THREADS="2", TARTLET_WORKER_DTYPE="float32")
    check = next(check for check in json.loads(asked.stdout) if check["name"] == "fast path")
    assert check["status"] == "warn"
    assert ("threads=1" in check["found"], "dtype=bfloat16" in check["found"]) == (True, True)


@pytest.mark.parametrize(
    "line", [("serve",), ("run", str(PROGRAMS / "echo.py")), *(("serve", "--role", r) for r in ("control", "runtime"))]
)
def test_a_run_directory_too_long_for_sockets_is_told_with_what_to_set(tmp_path: Path, line: tuple[str, ...]) -> None:
    directory = tmp_path / ("x" * 100)
    refused = tartlet_cli(directory, *line)
    assert refused.returncode == exits.USAGE
    assert "is longer than the 107 bytes that a socket's path may have" in refused.stderr
    assert "\nSet TARTLET_RUN_DIR to a shorter path" in refused.stderr
    assert sum("books are compared" not in line for line in refused.stderr.splitlines()) == 2, "gRPC has no say in it"
    checks = {check["name"]: check for check in json.loads(tartlet_cli(directory, "doctor", "--json").stdout)}
    assert (checks["run directory"]["status"], checks["run directory"]["remedy"][:19]) == (
        "fail",
        "Set TARTLET_RUN_DIR",
    )


def test_a_variable_that_nobody_knows_is_named_as_what_to_unset(run_dir: Path) -> None:
    refused = tartlet_cli(run_dir, "config", TARTLET_WORKER_DEVISE="cpu")
    assert refused.returncode == exits.USAGE
    assert refused.stderr.endswith("(did you mean 'device'?)\nCorrect or unset TARTLET_WORKER_DEVISE.\n")


def test_doctor_names_the_process_that_an_address_in_use_sends_one_to_look_for(server: Serving) -> None:
    second = tartlet_cli(server.run_dir, "serve", "--engine", "fake")
    assert second.returncode == exits.SYSTEM
    assert f"AddressInUse: {AddressInUse(address=str(server.run_dir)).explained}" in second.stderr
    checks = {check["name"]: check["found"] for check in json.loads(out(server.run_dir, "doctor", "--json"))}
    assert checks["run directory"] == f"{server.run_dir}, in use by process {server.process.pid}"
    with tempfile.TemporaryDirectory() as other:
        checks = {check["name"]: check["found"] for check in json.loads(out(Path(other), "doctor", "--json"))}
        assert checks["run directory"] == f"{other}, free"


def test_every_command_on_a_server_says_which_it_means_by_default(run_dir: Path) -> None:
    for name in ("launch", "ps", "attach", "send", "logs", "kill", "top", "models", "doctor"):
        told = " ".join(out(run_dir, name, "--help").split())
        assert "on this machine. Default: local. [env var: TARTLET_SERVER]" in told, name
    assert "Default: a server of its own, for this run" in " ".join(out(run_dir, "run", "--help").split())


@pytest.mark.parametrize("name", ["run", "launch", "ps", "doctor"])
def test_tls_takes_one_line_of_the_help_and_stands_last(name: str, run_dir: Path) -> None:
    lines = [line.strip() for line in out(run_dir, name, "--help").splitlines()]
    options = [line for line in lines if line.startswith("-") and not line.startswith("-h,")]
    assert options[-1].startswith("--tls-certificate, --tls-key, --tls-authority FILE, --tls-domain DOMAIN")
    assert sum("tls" in line for line in options) == 1


def test_a_program_is_named_listed_launched_by_its_name_and_forgotten(server: Serving, run_dir: Path) -> None:
    program = run_dir / "greet.py"
    program.write_text("import sys\n\ndef main():\n    return 'hello ' + sys.argv[1]\n")
    digest = out(server.run_dir, "catalogue", "put", "greet", str(program), "--description", "greets")
    assert len(digest.strip()) == 64
    [entry] = json.loads(out(server.run_dir, "catalogue", "list", "--json"))
    assert entry == {"name": "greet", "language": "python", "file": "greet.py", "model": "", "description": "greets"}
    launched = out(server.run_dir, "launch", "--inferlet", "greet", "you").strip()
    assert "hello you" in out(server.run_dir, "attach", launched)
    assert out(server.run_dir, "run", "--inferlet", "greet", "--quiet", "you") == "hello you\n"
    out(server.run_dir, "catalogue", "delete", "greet")
    assert json.loads(out(server.run_dir, "catalogue", "list", "--json")) == []
    for name in ("launch", "run"):
        gone = tartlet_cli(server.run_dir, name, "--inferlet", "greet", "you")
        assert gone.returncode == exits.USAGE
        assert "no inferlet named 'greet'" in gone.stderr


@pytest.mark.parametrize("name", ["bad name", "", "-x", "x" * 129])
def test_a_name_that_the_catalogue_does_not_take_is_a_usage_error(server: Serving, name: str) -> None:
    refused = tartlet_cli(server.run_dir, "catalogue", "put", "--", name, str(PROGRAMS / "echo.py"))
    assert refused.returncode == exits.USAGE
    assert "Invalid value for NAME: " in refused.stderr
    assert NAME.pattern == _NAME.pattern, "control's"


def test_a_role_lists_its_own_flags(run_dir: Path) -> None:
    assert "--steps-in-flight" in out(run_dir, "serve", "--role", "control", "--help")
    assert "--steps-in-flight" not in out(run_dir, "serve", "--help")


def test_what_serve_does_not_take_is_called_by_its_name(run_dir: Path) -> None:
    for given, said in (
        ("extra", "unexpected argument extra"),
        ("--extra", "unknown option --extra"),
        ("--policy", "unknown option --policy (is called --batching now; "),
        ("--policy-t-s=1", "is called --batching-t-s now"),
    ):
        refused = tartlet_cli(run_dir, "serve", given)
        assert (refused.returncode, said in refused.stderr) == (exits.USAGE, True), given


def test_a_failed_programs_journal_is_kept_unless_it_has_none(server: Serving) -> None:
    asked = {(): True, ("--durability", "degrade"): True, ("--no-journal",): False, ("--durability", "off"): False}
    programs = [out(server.run_dir, "launch", *o, str(PROGRAMS / "fails.py")).strip() for o in asked]
    for program in programs:
        assert "KeyError: 'missing'" in tartlet_cli(server.run_dir, "attach", program).stderr
    kept = [(server.run_dir / "journals" / f"{p}.journal").exists() for p in programs]
    assert kept == list(asked.values())
    given = ("--no-journal", "--durability", "on", str(PROGRAMS / "fails.py"))
    for name in ("launch", "run"):
        assert tartlet_cli(server.run_dir, name, *given).returncode == exits.USAGE


def test_what_is_no_program_is_refused_before_it_is_launched(server: Serving, run_dir: Path) -> None:
    program = run_dir / "broken.py"
    program.write_text("async def main(:\n    pass\n")
    refused = tartlet_cli(server.run_dir, "launch", str(program))
    assert (refused.returncode, refused.stdout) == (exits.PROGRAM_FAILED, "")
    assert "SyntaxError" in refused.stderr
    assert "broken.py" in refused.stderr
    assert "broken.py" not in out(server.run_dir, "ps", "--all")


def test_many_launches_with_one_key_are_refused(run_dir: Path) -> None:
    refused = tartlet_cli(run_dir, "launch", "--count", "3", "--key", "k", str(PROGRAMS / "echo.py"))
    assert (refused.returncode, refused.stdout) == (exits.USAGE, "")
    assert "--count: launches with the same --key are one program" in refused.stderr
