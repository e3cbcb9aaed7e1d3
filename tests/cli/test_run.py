"""`tartlet run`: what it says, where it writes, and its exit codes."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tartlet.events import Ended, Usage
from tartlet_cli.commands.programs import age, columns
from tartlet_cli.console import exits
from tartlet_cli.console.places import keep_newest
from tartlet_cli.console.terminal import Printer, closing_line
from tartlet_common.errors.registry import CheckpointMissing, ProgramFailed, Unavailable, UnknownModel, WorkerLost
from tests.e2e.serving import PROGRAMS, Serving, command, environment, out, tartlet_cli


def test_a_run_prints_the_programs_output_and_nothing_else_to_standard_output(run_dir: Path) -> None:
    result = tartlet_cli(run_dir, "run", "--engine", "fake", str(PROGRAMS / "sampled.py"), "hello", "0", "0", "1", "1")
    assert result.returncode == 0
    *pieces, text = result.stdout.splitlines()
    assert "".join(pieces).count(";") == 24 + text.count(";")
    assert len(text) == 24
    (closing,) = result.stderr.splitlines()
    assert closing.startswith("[24 tokens, first after ")


def test_the_workers_settings_decide_what_no_flag_does(run_dir: Path) -> None:
    args = ("run", "--quiet", "--seed", "1", str(PROGRAMS / "sampled.py"), "hello", "0", "0", "1", "1")
    by_setting = out(run_dir, *args, TARTLET_WORKER_ENGINE="fake", TARTLET_MODEL="/nowhere")
    assert by_setting == out(run_dir, "run", "--engine", "fake", *args[1:])


def test_a_failing_program_shows_its_traceback_alone_and_exits_with_1(server: Serving) -> None:
    result = tartlet_cli(server.run_dir, "run", "--server", "local", "--quiet", str(PROGRAMS / "fails.py"))
    assert result.returncode == 1
    assert result.stdout == "before\n"
    assert result.stderr.startswith("Traceback (most recent call last):\n")
    assert result.stderr.endswith("KeyError: 'missing'\n")
    assert f'File "{PROGRAMS / "fails.py"}", line 7, in inner' in result.stderr


def test_a_wrong_setting_is_told_once_and_starts_nothing(run_dir: Path) -> None:
    file = run_dir / "tartlet.toml"
    file.write_text("[worker]\nnum_slots = 0\n")
    for args, page_size, said in (
        (("--config", "nowhere.toml"), "16", "nowhere.toml: No such file or directory"),
        (("--config", str(file)), "32", "num_slots is 0 "),
        ((), "0", "page_size is '0' "),
    ):
        for command_line in (("run", "--engine", "fake", str(PROGRAMS / "echo.py")), ("serve", "--engine", "fake")):
            result = tartlet_cli(run_dir, *command_line, *args, TARTLET_WORKER_PAGE_SIZE=page_size)
            assert (result.returncode, result.stdout) == (exits.USAGE, "")
            assert result.stderr.count(said) == 1
            assert not list(run_dir.rglob("*.log"))  # of a role


def test_an_option_that_would_be_ignored_is_refused(run_dir: Path) -> None:
    for args, server, refused, because in (
        (("--server", "local", "--engine", "fake"), "", "--engine", "--server"),
        (("--config", "x.toml"), "local", "--config", "TARTLET_SERVER"),
        (("--inferlet", "--engine", "torch"), "", "--engine", "--inferlet"),
        (("--engine", "fake", "--model", "demo"), "", "--model", "--engine fake"),
        (("--native", "--max-memory", "100"), "", "--max-memory", "--native"),
    ):
        result = tartlet_cli(run_dir, "run", *args, "program.py", TARTLET_SERVER=server)
        assert result.returncode == exits.USAGE
        start, _, reason = result.stderr.rpartition(f"Error: {refused}: ")
        assert start
        assert because in reason


ARGS = "import json, sys\ndef main():\n    return json.dumps(sys.argv[1:])\n"


def test_our_options_may_stand_anywhere_and_all_others_are_the_programs(server: Serving, run_dir: Path) -> None:
    file = run_dir / "args.py"
    file.write_text(ARGS)
    given = [
        "--temperature",
        "0.7",
        "--server",
        "local",
        "-n",
        "3",
        "--flag=x",
        "--quiet",
        "--help",
        "--",
        "--seed",
        "5",
    ]
    printed = out(server.run_dir, "run", str(file), *given)
    assert json.loads(printed) == ["--temperature", "0.7", "-n", "3", "--flag=x", "--help", "--seed", "5"]


def test_native_runs_the_same_file_as_a_process_of_its_own(run_dir: Path) -> None:
    file = run_dir / "native.py"
    file.write_text(
        "import os, inferlet\n\ndef main():\n    inferlet.send('sent')\n    print(os.getpid() > 1)\n    return 'end'\n"
    )
    result = tartlet_cli(run_dir, "run", "--engine", "fake", "--native", str(file))
    assert result.returncode == 0, result.stderr
    assert "sent" in result.stdout
    assert "True" in result.stdout
    assert result.stdout.endswith("end\n")


def test_native_takes_no_module(run_dir: Path, repo: Path) -> None:
    refused = tartlet_cli(run_dir, "run", "--native", str(repo / "inferlets/sdk/c/examples/send_and_exit.wasm"))
    assert refused.returncode == exits.USAGE
    assert "--native is for Python files" in refused.stderr


def test_an_option_much_like_one_of_ours_goes_to_the_program_with_a_warning(server: Serving, run_dir: Path) -> None:
    program = run_dir / "arguments.py"
    program.write_text("import sys\n\ndef main():\n    return ' '.join(sys.argv[1:])\n")
    line = ["run", "--server", "local", "--quiet", str(program), "--sed", "7", "--max-tokens", "3"]
    asked = tartlet_cli(server.run_dir, *line, "--", "--modle")
    assert asked.stdout == "--sed 7 --max-tokens 3 --modle\n"
    assert asked.stderr.startswith("--sed ")
    assert "did you mean --seed?" in asked.stderr
    assert len(asked.stderr.splitlines()) == 1


def test_native_failures_show_the_traceback(server: Serving) -> None:
    result = tartlet_cli(server.run_dir, "run", "--server", "local", "--native", str(PROGRAMS / "fails.py"))
    assert result.returncode == 1
    assert result.stderr.count("KeyError: 'missing'") == 1


@pytest.mark.parametrize(
    ("how", "said"), [("raise ValueError('x' * (8 << 20))", "x\n"), ("return 'x' * (8 << 20)", "")]
)
def test_a_native_program_that_says_too_much_ends_in_what_it_was(
    server: Serving, run_dir: Path, how: str, said: str
) -> None:
    program = run_dir / "talks.py"
    program.write_text(f"def main():\n    {how}\n")
    result = tartlet_cli(server.run_dir, "run", "--server", "local", "--native", "--quiet", str(program))
    assert result.returncode == 1
    assert "FrameTooLarge" in result.stderr if not said else result.stderr.endswith(said)
    assert "MalformedSubmission" not in result.stderr


@pytest.mark.parametrize(
    ("how", "said"), [("os._exit(3)", "with status 3"), ("os.kill(os.getpid(), signal.SIGSEGV)", "by SIGSEGV")]
)
def test_a_native_process_that_dies_is_told(server: Serving, run_dir: Path, how: str, said: str) -> None:
    program = run_dir / "dies.py"
    program.write_text(f"import os, signal\n\ndef main():\n    {how}\n")
    result = tartlet_cli(server.run_dir, "run", "--server", "local", "--native", "--quiet", str(program))
    assert result.returncode == 1
    assert result.stderr.endswith(f"The program's process ended {said}, without a result.\n")


def test_run_tells_usage_errors_before_anything_starts(run_dir: Path) -> None:
    missing = tartlet_cli(run_dir, "run", "no such file.py")
    assert (missing.returncode, missing.stdout) == (exits.USAGE, "")
    assert "no such file.py" in missing.stderr
    for command_line in (["run"], ["launch"], ["catalogue", "put", "empty"]):
        empty = tartlet_cli(run_dir, *command_line, "/dev/null")
        assert (empty.returncode, empty.stdout) == (exits.USAGE, "")
        assert "the file is empty" in empty.stderr
    for name in ("run", "launch"):
        unknown = tartlet_cli(run_dir, name, "--nonsense", "program.py")
        assert unknown.returncode == exits.USAGE
        assert "No such option: --nonsense" in unknown.stderr
    both = tartlet_cli(run_dir, "run", "--native", "--interactive", str(PROGRAMS / "echo.py"))
    assert both.returncode == exits.USAGE
    model = tartlet_cli(run_dir, "run", str(PROGRAMS / "echo.py"), "--model", "/no/such/model")
    assert model.returncode == exits.SYSTEM
    assert "CheckpointMissing" in model.stderr
    assert list(run_dir.iterdir()) == []


def test_a_missing_guest_is_told_before_anything_starts(run_dir: Path, tmp_path: Path) -> None:
    result = tartlet_cli(run_dir, "run", "--engine", "fake", str(PROGRAMS / "echo.py"), TARTLET_CACHE_DIR=str(tmp_path))
    assert (result.returncode, result.stdout) == (exits.SYSTEM, "")
    assert "make setup" in result.stderr
    assert list(run_dir.iterdir()) == []


def test_logs_of_the_newest_failed_runs_are_kept(tmp_path: Path) -> None:
    for age_s in range(8):
        (tmp_path / f"logs-of-run-{age_s}").mkdir()
        os.utime(tmp_path / f"logs-of-run-{age_s}", (1000 - age_s, 1000 - age_s))
    keep_newest(tmp_path.glob("logs-of-*"))
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"logs-of-run-{age_s}" for age_s in range(5)]


def test_json_events_are_one_object_a_line(server: Serving) -> None:
    lines = out(
        server.run_dir, "run", "--server", "local", "--json", str(PROGRAMS / "sampled.py"), "a", "0", "0", "1", "1"
    )
    events = [json.loads(line) for line in lines.splitlines()]
    assert {e["event"] for e in events} == {"message", "ended"}
    assert events[-1]["success"] is True
    assert events[-1]["usage"]["sampled_tokens"] == 24


def test_lines_of_standard_input_reach_the_program_one_runs(server: Serving, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_bytes(b"a\nb\nstop")  # a file, which no loop can wait for, and without an end of its last line
    with lines.open("rb") as stdin:
        ran = subprocess.run(
            command("run", "--server", "local", "--interactive", "--quiet", str(PROGRAMS / "echo.py")),
            env=environment(server.run_dir),
            stdin=stdin,
            capture_output=True,
            check=True,
        )
    assert ran.stdout == b"ready\necho a\necho b\nanswered 2\n"


def hello(directory: Path) -> Path:
    program = directory / "hello.py"
    program.write_text('from inferlet import send\n\n\nasync def main():\n    send("hello\\n")\n')
    return program


@pytest.mark.parametrize("closed", ["0<&-", "2>&-", "0<&- 2>&-"])
def test_a_closed_standard_file_costs_the_program_nothing(server: Serving, tmp_path: Path, closed: str) -> None:
    line = shlex.join(command("run", "--server", "local", str(hello(tmp_path)))) + " " + closed
    ran = subprocess.run(["sh", "-c", line], env=environment(server.run_dir), capture_output=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, b"hello\n"), ran


def test_a_full_standard_output_is_the_system_s_failure(server: Serving, tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        ran = subprocess.run(
            command("run", "--server", "local", str(hello(tmp_path))),
            env=environment(server.run_dir),
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert (ran.returncode, b"Traceback" in ran.stderr) == (exits.SYSTEM, False), ran.stderr
    assert b"DiskFull: can't write standard output" in ran.stderr


@pytest.mark.parametrize("program", ["tartlet", "kubectl-tartlet"])
def test_help_that_can_t_be_written_is_told_of_and_closed_files_are_no_reason_to_fail(program: str) -> None:
    line = f"{Path(sys.executable).with_name(program)} --help"
    full = subprocess.run(["sh", "-c", f"{line} > /dev/full"], capture_output=True, check=False)
    assert (full.returncode, full.stderr.split(b":")[0]) == (exits.SYSTEM, b"DiskFull"), full
    closed = subprocess.run(["sh", "-c", f"{line} 0<&- 1>&- 2>&-"], capture_output=True, check=False)
    assert closed.returncode == 0, closed


def test_a_device_is_read_as_far_as_a_source_may_be(server: Serving) -> None:
    ran = tartlet_cli(server.run_dir, "run", "--server", "local", "/dev/zero")
    assert ran.stderr.startswith("SourceTooLarge")


def test_more_lines_than_a_program_has_room_for_wait_and_one_that_is_too_long_is_told_of(server: Serving) -> None:
    talk = command("run", "--server", "local", "--interactive", "--quiet", str(PROGRAMS / "echo.py"))
    many = b"".join(b"%d\n" % i for i in range(3000)) + b"stop\n"
    ran = subprocess.run(talk, env=environment(server.run_dir), input=many, capture_output=True, check=True)
    assert ran.stdout.endswith(b"echo 2999\nanswered 3000\n")
    ran = subprocess.run(
        talk, env=environment(server.run_dir), input=b"x" * (3 << 20) + b"\nstop\n", capture_output=True, check=False
    )
    assert (ran.returncode, ran.stderr.partition(b":")[0]) == (exits.PROGRAM_FAILED, b"FrameTooLarge")


def test_a_program_that_waits_where_nobody_can_reach_it_is_told_of_once(run_dir: Path) -> None:
    waits = subprocess.Popen(
        command("run", "--engine", "fake", str(PROGRAMS / "echo.py")),
        env=environment(run_dir),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert waits.stdout is not None
        assert waits.stderr is not None
        assert waits.stdout.readline() == b"ready\n"
        assert b"--interactive sends what you type" in waits.stderr.readline()
    finally:
        waits.send_signal(signal.SIGINT)
    assert waits.communicate(timeout=30) == (b"", b"")
    assert waits.returncode == exits.INTERRUPTED


def test_run_on_a_server_uses_it(server: Serving) -> None:
    result = tartlet_cli(server.run_dir, "run", "--server", "local", str(PROGRAMS / "fails.py"))
    assert result.returncode == exits.PROGRAM_FAILED
    assert [p.name for p in server.run_dir.iterdir() if p.name.startswith("run-")] == []


def test_exit_codes_tell_whose_fault_it_was() -> None:
    assert exits.exit_code(ProgramFailed(traceback="x"), ended=True) == exits.PROGRAM_FAILED
    assert exits.exit_code(UnknownModel(model="m", available=[])) == exits.USAGE
    assert exits.exit_code(WorkerLost(engine="e"), ended=True) == exits.SYSTEM
    assert exits.exit_code(CheckpointMissing(path="p", detail="d")) == exits.SYSTEM


def test_the_closing_line_leaves_out_what_there_is_not() -> None:
    assert closing_line(Usage(wall_s=1.5)) == "[no tokens sampled, 1.50 s in all]"
    assert (
        closing_line(Usage(sampled_tokens=1, first_token_s=0.5, wall_s=1))
        == "[1 token, first after 500 ms, 1.00 s in all]"
    )
    at_once = Usage(sampled_tokens=2, first_token_s=0.5, per_token_s=1e-7, wall_s=1)
    assert closing_line(at_once, 4.06) == "[2 tokens, first after 500 ms, 1.00 s in all, started in 4.1 s]"
    assert columns([("a", "bb"), ("ccc", "d")]) == "a    bb\nccc  d"
    assert [age(s) for s in (1, 300, 10_000)] == ["1s", "5m", "3h"]


def test_programs_that_choose_their_tokens_themselves_are_not_told_of_none(server: Serving, repo: Path) -> None:
    program = str(repo / "inferlets/std/autoregressive.py")
    result = tartlet_cli(server.run_dir, "run", "--server", "local", program)
    closing = (
        r"\[10 distributions for the program to sample from, first after [\d.]+ ms, [\d.]+ ms each, [\d.]+ s in all\]"
    )
    assert re.search(closing, result.stderr), result.stderr
    usage = json.loads(out(server.run_dir, "run", "--server", "local", "--json", program).splitlines()[-1])["usage"]
    assert (usage["sampled_tokens"], usage["distributions"]) == (0, 10)


def test_a_result_begins_on_a_line_of_its_own(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    from tartlet.events import Message

    printer = Printer(quiet=True)
    printer.event(Message("p", 0, b"\xe6\x97"))  # a character in two messages arrives whole
    printer.event(Message("p", 2, b"\xa5"))
    printer.event(Ended("p", 3, success=True, result="7", error=None, usage=Usage()))
    assert capfdbinary.readouterr().out.decode() == "日\n7\n"


def test_a_catalogue_is_a_running_servers(run_dir: Path) -> None:
    result = tartlet_cli(run_dir, "run", "--inferlet", "greet")
    assert (result.returncode, result.stdout) == (exits.SYSTEM, "")
    assert result.stderr.startswith("Unavailable: ")
    assert result.stderr.endswith(f"{Unavailable.remedy}\n")
    native = tartlet_cli(run_dir, "run", "--native", "--inferlet", "greet")
    assert (native.returncode, "--inferlet" in native.stderr) == (exits.USAGE, True)


def test_a_seed_decides_what_a_program_draws(server: Serving, run_dir: Path) -> None:
    file = run_dir / "draws.py"
    file.write_text("import random\n\ndef main():\n    return random.random()\n")
    ran = [out(server.run_dir, "run", "--server", "local", "--quiet", "--seed", seed, str(file)) for seed in ("7", "8")]
    launched = out(server.run_dir, "launch", "--seed", "7", "--count", "2", str(file)).split()
    assert [out(server.run_dir, "attach", program) for program in launched] == ran
    assert ran[0] != ran[1]
