"""Engines that share a volume download their checkpoint once, and never see a part of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tartlet_common.errors.registry import CheckpointBroken
from tartlet_worker.checkpoints.tensors import check
from tartlet_worker.fetch import CommandFailed, fetch
from tests.worker.families import checkpoint

DOWNLOADER = """
import os, sys, urllib.request
for name in sys.argv[2:]:
    at = os.path.join(os.environ["MODEL_DIR"], name)
    have = os.path.getsize(at) if os.path.exists(at) else 0
    request = urllib.request.Request(f"{sys.argv[1]}/{name}", headers={"Range": f"bytes={have}-"})
    with urllib.request.urlopen(request) as reply, open(at, "ab") as file:
        while block := reply.read1(1 << 12):
            file.write(block)
            file.flush()
"""
"""Downloads files one after another, from where an earlier attempt ended."""
BLOCK = 1 << 12


class Hub(ThreadingHTTPServer):
    """A server of a checkpoint's files that counts requests and bytes, and may send slowly."""

    daemon_threads = True

    def __init__(self, files: Path, pause_s: float) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files, self.pause_s = files, pause_s
        self.asked: Counter[str] = Counter()
        self.sent = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        name = self.path[1:]
        self.server.asked[name] += 1
        found = re.fullmatch(r"bytes=([0-9]+)-", self.headers.get("Range", "bytes=0-"))
        assert found is not None
        data = (self.server.files / name).read_bytes()[int(found[1]) :]
        self.send_response(206)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        for at in range(0, len(data), BLOCK):
            try:
                self.wfile.write(data[at : at + BLOCK])
            except OSError:  # the client was killed
                return
            self.server.sent += len(data[at : at + BLOCK])
            time.sleep(self.server.pause_s)

    def log_message(self, *_: object) -> None:
        """No-op: the tests count."""


@contextmanager
def hub(files: Path, pause_s: float = 0.0) -> Iterator[Hub]:
    server = Hub(files, pause_s)
    thread = threading.Thread(target=server.serve_forever, args=[0.05])
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small checkpoint, which the tests only read."""
    return checkpoint("llama3-grouped")


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def size(model: Path) -> int:
    return sum(map(len, content(model).values()))


def engine(into: Path, server: Hub) -> subprocess.Popen[str]:
    """Start the init container of one engine, in a process group of its own, as a container is."""
    command = [sys.executable, "-c", DOWNLOADER, server.url, *sorted(content(server.files))]
    return subprocess.Popen(
        [sys.executable, "-m", "tartlet_worker.fetch", f"--into={into}", "--path=deep/model", "--", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def until(holds: Callable[[], object], timeout_s: float = 30.0) -> None:
    end = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_engines_of_a_pool_ask_for_each_file_once_between_them(model: Path, tmp_path: Path) -> None:
    into = tmp_path / "fetched-1"
    with hub(model, pause_s=0.1) as server:
        engines = [engine(into, server) for _ in range(5)]
        until(lambda: server.sent)
        assert not into.exists(), "a part of the checkpoint has the final name"
        said = [each.communicate(timeout=60)[0] for each in engines]
        assert [each.returncode for each in engines] == [0] * 5, said
        assert server.asked == dict.fromkeys(content(model), 1)
        late = engine(into, server)
        assert (late.communicate(timeout=60)[0], late.returncode) == (f"{into} is there\n", 0)
        assert sum(server.asked.values()) == len(content(model))
    assert sum("another engine downloads: " in text for text in said) == 4, said
    assert content(into / "deep/model") == content(model)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_download_is_gone_on_with_by_the_engine_that_waits(
    model: Path, tmp_path: Path, how: signal.Signals
) -> None:
    into = tmp_path / "fetched-1"
    with hub(model, pause_s=0.05) as server:
        first = engine(into, server)
        until(lambda: server.sent > size(model) // 3)
        second = engine(into, server)
        if how is signal.SIGKILL:
            os.killpg(first.pid, how)  # as the kubelet ends a container
        else:
            first.send_signal(how)  # to the container's first process alone
        first.communicate(timeout=20)
        assert first.returncode == (-how if how is signal.SIGKILL else 128 + how)
        assert not into.exists()
        said = second.communicate(timeout=60)[0]
        assert second.returncode == 0, said
        assert server.sent < 1.6 * size(model), "it began anew"
    assert content(into / "deep/model") == content(model)


def test_a_wrapper_that_dies_alone_leaves_the_lock_to_its_download(model: Path, tmp_path: Path) -> None:
    """The kernel may end one process of a container for memory; the download goes on, and nobody writes beside it."""
    into = tmp_path / "fetched-1"
    with hub(model, pause_s=0.05) as server:
        first = engine(into, server)
        until(lambda: server.sent)
        first.kill()
        first.wait(10)
        second = engine(into, server)
        said = second.communicate(timeout=60)[0]
        assert second.returncode == 0, said
        assert server.sent == size(model), "two downloaded at once"
        first.communicate()
    assert content(into / "deep/model") == content(model)


def test_what_a_command_left_incomplete_gets_no_final_name(model: Path, tmp_path: Path) -> None:
    into, said = tmp_path / "fetched-1", list[str]()
    cut = f"cp {model}/* $MODEL_DIR/ && truncate -s 9999 $MODEL_DIR/model.safetensors"
    with pytest.raises(CheckpointBroken, match=r"model\.safetensors"):
        fetch(into, "m", ["sh", "-c", cut], said.append)
    assert not list(tmp_path.glob("fetched*")), "a broken checkpoint is begun anew"
    with pytest.raises(CommandFailed) as failed:
        fetch(into, "m", ["sh", "-c", f"cp {model}/config.json $MODEL_DIR/; exit 3"], said.append)
    assert (failed.value.code, into.exists()) == (3, False)
    fetch(into, "m", ["sh", "-c", f"test -e $MODEL_DIR/config.json && cp {model}/* $MODEL_DIR/"], said.append)
    check(into / "m")
    assert said == [f"{into} is there: downloaded"]


@pytest.mark.parametrize(
    "extra",
    [
        pytest.param("mkfifo $MODEL_DIR/tokenizer_config.json", id="pipe"),
        pytest.param("mkfifo $MODEL_DIR/../beside", id="pipe-beside-the-model"),
        pytest.param("ln -s /dev/zero $MODEL_DIR/notes", id="link-to-a-device"),
        pytest.param("ln -s $MODEL_DIR/config.json $MODEL_DIR/copy.json", id="link-that-the-final-name-breaks"),
        pytest.param("ln -s gone $MODEL_DIR/notes", id="dangling"),
        pytest.param("ln -s ../../.. $MODEL_DIR/up", id="link-out-of-the-download"),
    ],
)
def test_a_download_with_special_files_is_refused_by_name(model: Path, tmp_path: Path, extra: str) -> None:
    into = tmp_path / "fetched-1"
    command = ["sh", "-c", f"cp {model}/* $MODEL_DIR/ && {extra}"]
    with pytest.raises(CheckpointBroken, match=extra.rpartition("/")[2].split()[-1]):
        fetch(into, "m", command, lambda _: None)
    assert not list(tmp_path.glob("fetched*"))


def test_links_within_a_download_are_kept(model: Path, tmp_path: Path) -> None:
    """Downloaders keep files by digest and link them from the model's directory."""
    into = tmp_path / "fetched-1"
    keep = f"mkdir -p $MODEL_DIR/../blobs && cp {model}/* $MODEL_DIR/../blobs"
    fetch(into, "m", ["sh", "-c", f"{keep} && cd $MODEL_DIR && ln -sf ../blobs/* ."], lambda _: None)
    check(into / "m")
    assert content(into / "m") == content(model)


def test_a_volume_that_cannot_be_written_is_told_with_its_remedy(tmp_path: Path) -> None:
    missing = tmp_path / "none" / "fetched-1"
    command = [sys.executable, "-m", "tartlet_worker.fetch", f"--into={missing}", "--", "true"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "spec.podTemplate.fsGroup" in done.stderr
