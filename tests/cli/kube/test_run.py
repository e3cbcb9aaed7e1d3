"""`run --kube` and kubectl's plugin, by an editor, through a real API server to a real runtime.

Skipped where the fixture api_server can start none.
"""

from __future__ import annotations

import base64
import json
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tartlet_cli.console import exits
from tests.cli.kube.kube_shell import Shell, file
from tests.cli.kube.releases import DOMAIN, RULES, Release, ready, release_up
from tests.e2e.cluster import Cluster as Roles
from tests.e2e.cluster import cluster as roles_up
from tests.e2e.serving import PROGRAMS


@pytest.fixture(scope="module")
def roles() -> Iterator[Roles]:
    """Control, a runtime and a fake engine over mutual TLS."""
    directory = Path(tempfile.mkdtemp(prefix="tt-"))
    try:
        with roles_up(directory, runtimes=1, domain=DOMAIN) as made:
            yield made
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def release(shell: Shell, roles: Roles) -> Iterator[Release]:
    with release_up(shell, roles, [roles.runtimes[0]]) as made:
        yield made


SAMPLED = ("hello", "0", "0", "1", "1")


def test_a_program_runs_on_the_cluster_as_it_does_here(release: Release) -> None:
    done = release.editor("run", "--kube", str(PROGRAMS / "sampled.py"), *SAMPLED)
    assert done.returncode == 0, done.stderr
    *pieces, text = done.stdout.splitlines()
    assert "".join(pieces).count(";") == 24 + text.count(";")
    assert done.stderr.startswith("[24 tokens, first after ")
    assert done.stderr.count("\n") == 1
    failed = release.editor("run", "--kube", "--quiet", str(PROGRAMS / "fails.py"))
    assert failed.returncode == exits.PROGRAM_FAILED
    assert failed.stderr.endswith("KeyError: 'missing'\n")
    assert {p.partition("?")[0] for p in release.kubelet.paths} == {
        f"/portForward/{release.shell.namespace}/prod-runtime-0"
    }
    assert list((release.shell.directory / "run").iterdir()) == []  # no certificates are left


def test_much_output_comes_whole_and_the_programs_own_n_is_its_own(release: Release) -> None:
    text = "import sys\nasync def main():\n    for _ in range(400):\n        print('x' * 10_000)\n"
    text += "    return ' '.join(sys.argv[1:])\n"
    path = file(release.shell, text)
    done = release.editor("run", "-n", release.shell.namespace, path, "-n", "3", plugin=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ("x" * 10_000 + "\n") * 400 + "-n 3\n"


def test_ctrl_c_ends_the_program(release: Release) -> None:
    process = release.editor.start("run", "--kube", str(PROGRAMS / "echo.py"))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    running = json.loads(release.editor("top", "--once", "--json", plugin=True).stdout)["programs"]
    assert [p["state"] for p in running] == ["running"]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == exits.INTERRUPTED
    end = time.monotonic() + 10
    while json.loads(release.editor("top", "--once", "--json", plugin=True).stdout)["programs"]:
        assert time.monotonic() < end, "it still runs"
    assert list((release.shell.directory / "run").iterdir()) == []


@pytest.mark.parametrize("command", [("top", "--json"), ("logs", "-f", "r")], ids=["top", "logs"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_whoever_ends_a_command_gets_its_private_key_off_the_disk(
    release: Release, command: tuple[str, ...], number: signal.Signals
) -> None:
    program = release.editor.start("run", "--kube", "--json", str(PROGRAMS / "echo.py"))
    assert program.stdout is not None
    program_id = json.loads(program.stdout.readline())["program_id"]
    runs = f"/apis/tartlet.dev/v1alpha1/namespaces/{release.shell.namespace}/inferletruns"
    run = {"apiVersion": "tartlet.dev/v1alpha1", "kind": "InferletRun", "metadata": {"name": "r"}}
    release.shell.server.call("POST", runs, run | {"spec": {"inferlet": "hello"}})
    status = {"status": {"phase": "Running", "programId": program_id}}
    release.shell.server.call("PATCH", f"{runs}/r/status", status, "application/merge-patch+json")
    looking = release.shell.start(*command, plugin=True)
    assert looking.stdout is not None
    assert looking.stdout.readline()  # it is connected
    assert len(list((release.shell.directory / "run").glob("*/tls.key"))) == 2
    for process in (looking, program):
        process.send_signal(number)
        process.communicate(timeout=30)
        assert process.returncode == exits.INTERRUPTED
    assert list((release.shell.directory / "run").iterdir()) == []


def test_after_a_cut_connection_the_run_goes_on_through_the_next_one(release: Release) -> None:
    command = ("run", "--kube", "--interactive", str(PROGRAMS / "echo.py"))
    process = release.editor.start(*command, stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "ready\n"
    for text in ("one", "two"):
        release.kubelet.cut()
        process.stdin.write(f"{text}\n")
        process.stdin.flush()
        assert process.stdout.readline() == f"echo {text}\n"
    process.communicate("stop\n", timeout=60)
    assert process.returncode == 0


def test_what_is_missing_is_named_with_what_to_do(release: Release) -> None:
    path = str(PROGRAMS / "echo.py")

    def refused(*flags: str) -> tuple[str, str, int]:
        done = release.editor("run", "--kube", *flags, path)
        return done.stderr.split(":")[0], done.stderr, done.returncode

    name, err, code = refused("--release", "other")
    assert (name, code) == ("ReleaseNotFound", exits.USAGE)
    assert "there are: prod" in err

    release.kubelet.refuse = "error forwarding port 7444 to pod: connection refused"
    name, err, code = refused()
    assert (name, code) == ("PortForwardFailed", exits.SYSTEM), err
    assert "connection refused" in err
    release.kubelet.refuse = ""

    name, err, code = refused("--inferlet")
    assert (name, code) == ("UnknownInferlet", exits.USAGE), err
    assert f"`kubectl -n {release.shell.namespace} get inferlet {path}`" in err

    ready(release, "False")
    name, err, code = refused()
    assert (name, code) == ("RuntimeNotReady", exits.SYSTEM)
    assert "pod prod-runtime-0 is Running, not ready" in err
    ready(release, "True")

    for without, told in ((2, "pods/portforward"), (0, "secrets"), (1, "services")):
        rules = [rule for n, rule in enumerate(RULES) if n != without]
        release.shell.server.call("PATCH", release.role, {"rules": rules}, "application/merge-patch+json")
        deadline = time.monotonic() + 10
        while (got := refused())[2] == 0 or (told not in got[1] and time.monotonic() < deadline):
            pass  # RBAC is read from a cache
        name, err, code = got
        assert (name, code) == ("Forbidden", exits.USAGE), err
        assert told in err
        assert "tartlet:NAMESPACE:RELEASE:editor" in err


def test_a_release_without_its_certificates_says_what_makes_them(release: Release) -> None:
    release.core("DELETE", "secrets/prod-client-tls")
    done = release.editor("run", "--kube", str(PROGRAMS / "echo.py"))
    assert (done.returncode, done.stderr.split(":")[0]) == (exits.USAGE, "IdentityMissing")
    assert "`helm upgrade` makes them" in done.stderr


def test_a_certificate_that_the_runtime_does_not_know_is_no_port_forward_that_broke(
    release: Release, roles: Roles
) -> None:
    other = Roles(release.shell.directory / "other", DOMAIN)
    other.directory.mkdir()
    tls = other.identity("client")
    data = {"ca.crt": base64.b64encode(tls.authority.read_bytes()).decode()}
    release.core("PATCH", "secrets/prod-client-tls", {"data": data}, "application/merge-patch+json")
    done = release.editor("run", "--kube", str(PROGRAMS / "echo.py"))
    assert done.returncode == exits.SYSTEM
    assert "RuntimeUnreachable: the runtime in pod prod-runtime-0" in done.stderr, done.stderr
    assert "CERTIFICATE_VERIFY_FAILED" in done.stderr


def test_logs_of_a_run_come_from_its_program_and_then_from_its_status(release: Release) -> None:
    space = release.shell.namespace
    runs = f"/apis/tartlet.dev/v1alpha1/namespaces/{space}/inferletruns"
    run = {"apiVersion": "tartlet.dev/v1alpha1", "kind": "InferletRun", "metadata": {"name": "r"}}
    release.shell.server.call("POST", runs, run | {"spec": {"inferlet": "hello"}})

    def state(**status: Any) -> None:
        release.shell.server.call("PATCH", f"{runs}/r/status", {"status": status}, "application/merge-patch+json")

    waits = release.shell("logs", "r", plugin=True)
    assert (waits.returncode, waits.stderr.split(":")[0]) == (exits.USAGE, "RunNotStarted")
    assert "NoStatus: no operator has looked at it yet" in waits.stderr
    following = release.shell.start("logs", "-f", "r", plugin=True)
    assert following.stderr is not None
    assert "NoStatus: no operator has looked at it yet" in following.stderr.readline()
    following.terminate()
    following.communicate(timeout=30)
    state(phase="Running", programId="forgotten", output="so far\n")
    forgotten = release.shell("logs", "irun/r", plugin=True)
    assert (forgotten.returncode, forgotten.stdout) == (0, "so far\n")
    assert "no program forgotten" in forgotten.stderr
    following = release.shell.start("logs", "-f", "r", plugin=True)
    assert following.stderr is not None
    assert "no program forgotten" in following.stderr.readline()
    state(phase="Running", programId="later", attempts=2, output="again\n")
    assert following.stderr.readline() == "[attempt 2 begins, as program later]\n"
    following.terminate()
    following.communicate(timeout=30)
    process = release.editor.start("run", "--kube", "--json", str(PROGRAMS / "echo.py"))
    assert process.stdout is not None
    state(phase="Running", programId=json.loads(process.stdout.readline())["program_id"])
    assert release.shell("logs", "r", plugin=True).stdout == "ready\n"
    process.terminate()
    process.communicate(timeout=30)
    error = {"name": "ProgramFailed", "number": 201, "traceback": "Traceback ...\nKeyError: 'k'\n"}
    state(phase="Failed", output="kept\n", outputTruncated=True, error=error)
    ended = release.shell("logs", "-f", "r", plugin=True)
    assert (ended.returncode, ended.stdout) == (exits.PROGRAM_FAILED, "kept\n")
    assert release.shell("logs", "r", plugin=True).returncode == 0, "it shows what there is, and judges nothing"
    assert ended.stderr == "[the start of the output is not kept]\nTraceback ...\nKeyError: 'k'\n"
    shown = release.shell("status", plugin=True).stdout
    assert "prod     1 ready" in shown
    assert "r    hello     Failed  ProgramFailed" in shown
    told = {"message": "the program raised an exception", "remedy": "Look.", "traceback": "(not kept)"}
    state(phase="Failed", output="", outputTruncated=False, outputKept=False, error=error | told)
    silent = release.shell("logs", "r", plugin=True)
    assert silent.stdout == ""
    assert silent.stderr == (
        "[spec.output is none: no output is kept]\nProgramFailed: the program raised an exception\nLook.\n"
    )
    assert "ilet/" not in shown, "what has no status has no cause"


def test_wait_ends_with_the_run_and_fails_with_it(release: Release) -> None:
    runs = f"/apis/tartlet.dev/v1alpha1/namespaces/{release.shell.namespace}/inferletruns"
    run = {"apiVersion": "tartlet.dev/v1alpha1", "kind": "InferletRun", "metadata": {"name": "w"}}
    release.shell.server.call("POST", runs, run | {"spec": {"inferlet": "hello"}})

    def state(**status: Any) -> None:
        release.shell.server.call("PATCH", f"{runs}/w/status", {"status": status}, "application/merge-patch+json")

    late = release.shell("wait", "w", "--timeout", "100ms", plugin=True)
    assert (late.returncode, late.stderr.split(":")[0]) == (exits.SYSTEM, "RunNotEnded")
    waiting = release.shell.start("wait", "irun/w", plugin=True)
    state(phase="Running", programId="p")
    state(phase="Succeeded")
    out, err = waiting.communicate(timeout=30)
    assert (waiting.returncode, out, err) == (0, "inferletrun.tartlet.dev/w succeeded\n", "")
    state(phase="Failed", error={"name": "ProgramFailed", "number": 201, "traceback": "KeyError: 'k'\n"})
    failed = release.shell("wait", "w", plugin=True)
    assert (failed.returncode, failed.stdout, failed.stderr) == (exits.PROGRAM_FAILED, "", "KeyError: 'k'\n")
    state(phase="Failed", error={"name": "RuntimeLost", "number": 403, "message": "it went", "traceback": None})
    lost = release.shell("wait", "w", "--json", plugin=True)
    assert (lost.returncode, json.loads(lost.stdout)["error"]["name"]) == (exits.SYSTEM, "RuntimeLost")
    unread = release.shell("wait", "w", "--timeout", "soon", plugin=True)
    assert unread.returncode == exits.USAGE
    assert "'soon' is no time: give seconds, or a time such as 3s" in unread.stderr
    missing = release.shell("wait", "nobody", plugin=True)
    assert (missing.returncode, missing.stderr.split(":")[0]) == (exits.USAGE, "NotThere")


def test_logs_come_from_the_status_where_no_runtime_can_be_reached(release: Release) -> None:
    space = release.shell.namespace
    runs = f"/apis/tartlet.dev/v1alpha1/namespaces/{space}/inferletruns"
    run = {"apiVersion": "tartlet.dev/v1alpha1", "kind": "InferletRun", "metadata": {"name": "r"}}
    release.shell.server.call("POST", runs, run | {"spec": {"inferlet": "hello"}})

    def state(**status: Any) -> None:
        release.shell.server.call("PATCH", f"{runs}/r/status", {"status": status}, "application/merge-patch+json")

    state(phase="Running", programId="p", output="first line\n")
    release.core("DELETE", "services/prod-runtime")
    shown = release.shell("logs", "r", plugin=True)
    assert (shown.returncode, shown.stdout) == (0, "first line\n")
    assert "no release of Tartlet" in shown.stderr
    process = release.shell.start("logs", "-f", "r", plugin=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "first line\n"
    state(output="first line\nsecond line\n")
    assert process.stdout.readline() == "second line\n"
    error = {"name": "ProgramFailed", "number": 201, "traceback": "KeyError: 'k'\n"}
    state(phase="Failed", output="second line\nthird line\n", outputTruncated=True, error=error)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (exits.PROGRAM_FAILED, "third line\n")
    assert err.endswith("late; no release of Tartlet in namespace " + space + "]\nKeyError: 'k'\n")
