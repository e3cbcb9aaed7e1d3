"""Attempts of a program to leave its sandbox in a real pod, and the pod's own rights if the sandbox failed."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from e2e.cluster.kube import Kube, Object, Refused, step
from e2e.tests.conftest import NAMESPACE, RELEASE
from e2e.tests.programs.test_answers import API, run

TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - a path

ATTEMPTS: dict[str, tuple[str, str]] = {
    # files
    "read a file": ("open('/etc/passwd').read()", "FileNotFoundError"),
    "read the role's key": ("open('/etc/tartlet/tls/tls.key').read()", "FileNotFoundError"),
    "read a token": (f"open('{TOKEN}/token').read()", "FileNotFoundError"),
    "read the role's environment": ("open('/proc/self/environ').read()", "FileNotFoundError"),
    "read another program's journal": ("open('/tmp/run/journals/slot-0', 'rb')", "FileNotFoundError"),
    "read its own file": ("open(__file__).read()", "FileNotFoundError"),
    "read by number": ("os.fdopen(3).read()", "OSError"),
    "write to scratch": ("open('/tmp/made', 'w')", "FileNotFoundError"),
    "write where it is": ("open('made', 'w')", "FileNotFoundError"),
    "make a temporary file": ("import tempfile; tempfile.TemporaryFile()", "FileNotFoundError"),
    "make a directory": ("os.mkdir('/tmp/made')", "FileNotFoundError"),
    "list the root": ("os.listdir('/')", "FileNotFoundError"),
    "list scratch": ("os.listdir('/tmp')", "FileNotFoundError"),
    "list where it is": ("os.listdir('.')", "FileNotFoundError"),
    "scan": ("next(os.scandir('/'))", "FileNotFoundError"),
    "walk": ("next(os.walk('/'))", "StopIteration"),
    "look at a file": ("os.stat('/')", "FileNotFoundError"),
    "remove": ("os.remove('/etc/passwd')", "FileNotFoundError"),
    "rename": ("os.rename('/etc/passwd', '/tmp/made')", "FileNotFoundError"),
    "link": ("os.symlink('/etc/passwd', '/tmp/made')", "FileNotFoundError"),
    "go elsewhere": ("os.chdir('/')", "FileNotFoundError"),
    "map memory": ("import mmap", "ModuleNotFoundError"),
    "make a pipe": ("os.pipe()", "AttributeError"),
    # environment
    "read a variable": ("os.environ['TARTLET_RUNTIME_CONTROL']", "KeyError"),
    "list variables": ("next(iter(os.environ))", "StopIteration"),
    "read standard input": ("input()", "EOFError"),
    "ask who it is": ("os.getuid()", "AttributeError"),
    # sockets
    "connect": ("socket.create_connection(('10.96.0.1', 443), 1)", "PermissionError"),
    "connect to control": (f"socket.create_connection(('{RELEASE}-control', 7443), 1)", "PermissionError"),
    "resolve a name": ("socket.getaddrinfo('kubernetes.default.svc', 443)", "PermissionError"),
    "send a datagram": ("socket.socket(socket.AF_INET, socket.SOCK_DGRAM)", "PermissionError"),
    "use a Unix socket": ("socket.socket(socket.AF_UNIX)", "AttributeError"),
    "listen": ("socket.create_server(('', 8000))", "PermissionError"),
    "connect by asyncio": ("await asyncio.open_connection('10.96.0.1', 443)", "PermissionError"),
    "listen by asyncio": ("await asyncio.start_server(print, '0.0.0.0', 8000)", "OSError"),
    "fetch a URL": ("import urllib.request", "ModuleNotFoundError"),
    "speak HTTP": ("import http.client", "ModuleNotFoundError"),
    "speak TLS": ("import ssl", "ModuleNotFoundError"),
    # processes and threads
    "run a process": ("import subprocess; subprocess.run(['ls'])", "OSError"),
    "run one by asyncio": ("await asyncio.create_subprocess_exec('ls')", "NotImplementedError"),
    "run a shell": ("os.system('ls')", "AttributeError"),
    "open a process": ("os.popen('ls')", "OSError"),
    "fork": ("os.fork()", "AttributeError"),
    "become another": ("os.execv('/bin/sh', ['sh'])", "AttributeError"),
    "send a signal": ("os.kill(1, 9)", "AttributeError"),
    "share processes": ("import multiprocessing", "ModuleNotFoundError"),
    "start a thread": ("threading.Thread(target=print).start()", "RuntimeError"),
    "start a bare thread": ("import _thread; _thread.start_new_thread(print, ())", "RuntimeError"),
    "start a pool": ("concurrent.futures.ThreadPoolExecutor()", "ModuleNotFoundError"),
    "leave the loop's thread": ("await asyncio.to_thread(print)", "ModuleNotFoundError"),
    # the host's own code
    "call C": ("import ctypes", "ModuleNotFoundError"),
    "call C by hand": ("import _ctypes", "ModuleNotFoundError"),
    "import a role": ("import tartlet_runtime", "ModuleNotFoundError"),
    "import the way out": ("import inferlet._running.native", "ModuleNotFoundError"),
    # names of another program
    "read another's page": ("await touched(inferlet.copy_kvpage(inferlet.KvPage(PAGE), MINE))", "UnknownResource"),
    "write another's page": ("await touched(inferlet.copy_kvpage(MINE, inferlet.KvPage(PAGE)))", "UnknownResource"),
    "hide another's page": ("await touched(inferlet.mask_kvpage(inferlet.KvPage(PAGE), [True]))", "UnknownResource"),
    "free another's page": ("await touched(inferlet.dealloc_kvpage([inferlet.KvPage(PAGE)]))", "UnknownResource"),
    "read another's result": ("await inferlet.get_next_dist(inferlet.Embed(EMBED), top_k=1)", "UnknownResource"),
    "use a model that isn't served": ("await inferlet.get_model('someone-elses')", "UnknownModel"),
}
"""Name -> an attempt of a program, and the class of the error that it gets."""

SAYS_NOTHING = {"socket.gethostname()", "os.uname().nodename", "os.cpu_count()", "__import__('platform').node()"}
"""Words that might tell a program where it runs."""

HOLDS = """
import asyncio
from inferlet import alloc_emb, alloc_kvpage, synchronize


async def main() -> str:
    pages, embeds = alloc_kvpage(8), alloc_emb(8)
    await synchronize()
    print([int(p) for p in pages], [int(e) for e in embeds], flush=True)
    await asyncio.sleep(15)
    return "still mine"
"""

TRIES = """
import ast
import asyncio
import concurrent.futures
import json
import os
import socket
import sys
import threading

import inferlet


async def touched(done):
    if done is not None:
        await done
    await inferlet.synchronize()


async def main():
    tries, says, page, embed = json.loads(sys.argv[1])
    scope = {**globals(), "PAGE": page, "EMBED": embed, "MINE": inferlet.alloc_kvpage(1)[0]}
    got = {}
    for name, code in tries.items():
        try:
            result = eval(compile(code, "attempt", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), scope)
            if result is not None:
                await result
            got[name] = ""
        except BaseException as e:
            got[name] = type(e).__name__
        inferlet.reset()
    print(json.dumps([got, {code: str(eval(code)) for code in says}]))
"""

TOO_FAR: dict[str, tuple[str, ...]] = {
    "NotAllowed": ("os._exit(0)",),
    "UnsupportedAbi": ("inferlet._wire.host.backend.submit(bytes(256))", "await inferlet.receive()"),
    "ProgramMemoryExceeded": ("bytearray(1 << 30)",),
    "ProgramCpuExceeded": ("while True:", "    pass"),
    "ProgramFailed": ("open('/etc/shadow')",),
}
"""Error -> the body of a program that ends in it."""

LOOK = """
import glob, importlib.util, json, os, socket
def attempt(path):
    try:
        open(path, "w").close()
        os.remove(path)
        return "written"
    except OSError as e:
        return e.strerror
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
print(json.dumps({
    "user": os.getuid(), "group": os.getgid(),
    "capabilities": {int(status[k], 16) for k in ("CapEff", "CapPrm", "CapBnd", "CapInh")} == {0},
    "no_new_privileges": status["NoNewPrivs"].strip(), "seccomp": status["Seccomp"].strip(),
    "writes": {path: attempt(path) for path in PATHS},
    "token": glob.glob("TOKEN/*"),
    "torch": importlib.util.find_spec("torch") is not None,
}))
"""
PATHS = (
    "/touched",
    "/etc/touched",
    "/opt/venv/touched",
    "/opt/tartlet/touched",
    "/usr/lib/touched",
    "/etc/tartlet/tls/x",
)


@pytest.fixture(scope="module")
def programs(kube: Kube, fake_pool: str) -> str:
    """Applies the programs of these tests, and returns their pool."""
    for name, source in (("holds", HOLDS), ("tries", TRIES)):
        spec = {"source": {"inline": source}, "pool": fake_pool}
        kube.apply({"apiVersion": API, "kind": "Inferlet", "metadata": {"name": name}, "spec": spec})
    for name in ("holds", "tries"):
        kube.wait(f"ilet/{name}", "Ready")
    return fake_pool


def test_a_program_that_tries_everything_gets_typed_errors(kube: Kube, programs: str) -> None:
    kube.apply(run("holder", "holds", deadlineSeconds=120))
    kube.wait("irun/holder", "Running")
    tries = {name: code for name, (code, _) in ATTEMPTS.items()}
    with step(f"{len(tries)} attempts"):
        # the neighbour's names begin where this program's own end
        kube.apply(run("tries", "tries", args=[json.dumps([tries, sorted(SAYS_NOTHING), 5, 5])], deadlineSeconds=60))
        kube.wait("irun/tries", "Succeeded")
    got, said = json.loads(kube.get("irun/tries")["status"]["output"])
    assert got == {name: error for name, (_, error) in ATTEMPTS.items()}
    for code, word in said.items():
        assert RELEASE not in word, code
        assert word in {"", "(none)", "wasi", "None", "1"}, code
    kube.wait("irun/holder", "Succeeded")
    status = kube.get("irun/holder")["status"]
    assert status["result"] == "still mine"
    assert status["completionTime"] > kube.get("irun/tries")["status"]["completionTime"]
    names = json.loads(f"[{status['output'].strip().replace('] [', '], [')}]")
    assert [5 in of_a_kind for of_a_kind in names] == [True, True]  # the names that were tried


@pytest.mark.parametrize(("error", "lines"), TOO_FAR.items())
def test_a_program_that_goes_too_far_ends_in_a_typed_error(
    kube: Kube, fake_pool: str, error: str, lines: tuple[str, ...]
) -> None:
    name = error.lower()
    source = "\n".join(("import os", "import inferlet", "async def main():", *(f"    {line}" for line in lines), ""))
    spec = {"source": {"inline": source}, "pool": fake_pool}
    kube.apply({"apiVersion": API, "kind": "Inferlet", "metadata": {"name": name}, "spec": spec})
    kube.wait(f"ilet/{name}", "Ready")
    kube.apply(run(name, name, deadlineSeconds=60))
    kube.wait(f"irun/{name}", "Failed")
    assert kube.get(f"irun/{name}")["status"]["error"]["name"] == error


def ours(kube: Kube) -> list[Object]:
    """Returns the running pods of the release, engines included."""
    pods = kube.items("pods", "-l", "app.kubernetes.io/name=tartlet")
    running = [p for p in pods if p["status"]["phase"] == "Running" and "deletionTimestamp" not in p["metadata"]]
    assert {_role(p) for p in running} >= {"control", "runtime", "operator", "worker"}
    return running


def _role(pod: Object) -> str:
    role: str = pod["metadata"]["labels"]["app.kubernetes.io/component"]
    return role


def test_pods_ask_for_nothing_that_they_do_not_need(kube: Kube, fake_pool: str) -> None:
    for pod in ours(kube):
        spec = pod["spec"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & {key for key, value in spec.items() if value}
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        mounted = [m["mountPath"] for c in _containers(spec) for m in c.get("volumeMounts", ())]
        assert (TOKEN in mounted) == (_role(pod) == "operator")
        for volume in spec["volumes"]:
            assert set(volume) - {"name"} <= {"emptyDir", "secret", "projected", "persistentVolumeClaim"}
        for container in _containers(spec):
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["runAsNonRoot"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}


def _containers(spec: Object) -> Sequence[Object]:
    return (*spec.get("initContainers", ()), *spec["containers"])


def test_pods_are_as_poor_inside(kube: Kube, fake_pool: str) -> None:
    code = LOOK.replace("PATHS", repr(PATHS)).replace("TOKEN", TOKEN)
    for pod in ours(kube):
        role, name = _role(pod), pod["metadata"]["name"]
        # -I: ignores the packages that PYTHONPATH adds to the image's
        seen = json.loads(kube("exec", name, "-c", role, "--", "python", "-I", "-c", code))
        assert (seen["user"], seen["group"]) == (10001, 10001), role
        assert seen["capabilities"], role
        assert (seen["no_new_privileges"], seen["seccomp"]) == ("1", "2"), role
        assert set(seen["writes"].values()) == {"Read-only file system"}, (role, seen["writes"])
        assert bool(seen["token"]) == (role == "operator")
        assert seen["torch"] is False, role
        assert "uid=10001" in kube("exec", name, "-c", role, "--", "id")
        with pytest.raises(Refused, match="Read-only file system"):
            kube("exec", name, "-c", role, "--", "touch", "/touched")
        if role != "operator":
            with pytest.raises(Refused, match="No such file or directory"):
                kube("exec", name, "-c", role, "--", "ls", TOKEN)


def test_the_namespace_refuses_pods_that_are_not_restricted(kube: Kube) -> None:
    plain: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "plain", "namespace": NAMESPACE},
        "spec": {"containers": [{"name": "plain", "image": "plain"}]},
    }
    with pytest.raises(Refused, match="violates PodSecurity"):
        kube("create", "--dry-run=server", "-f", "-", text=json.dumps(plain))
