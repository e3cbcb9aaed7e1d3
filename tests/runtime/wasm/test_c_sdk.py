"""The C SDK agrees with the ABI, its guests are fresh, and they do what they say."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tartlet_common import abi
from tartlet_runtime.wasm import LinkedModule, OutcomeKind, Phase, WasmHost
from tests.runtime.wasm.conftest import GUESTS, ROOT
from tests.runtime.wasm.driving import Driver, outcome_of, submitted

C_SDK = ROOT / "inferlets" / "sdk" / "c"
EXAMPLES = C_SDK / "examples"
VECTORS = json.loads((ROOT / "inferlets" / "sdk" / "vectors" / "abi.json").read_text())
VOCABULARY, PAGE_SIZE, STOP = 1000, 4, 7


def test_constants_agree_with_the_abi() -> None:
    header = (C_SDK / "tartlet_abi.h").read_text()
    for prefix, enum in (("OP", abi.Op), ("EVENT", abi.Event), ("FLAG", abi.Flag), ("PRIORITY", abi.Priority)):
        named = {name: int(value) for name, value in re.findall(rf"TL_{prefix}_(\w+) = (\d+),", header)}
        assert named == {member.name: member.value for member in enum}
    for name in ("ABI_VERSION", "HEADER_BYTES", "RECORD_BYTES"):
        assert f"#define TL_{name} {getattr(abi, name)}\n" in header


def test_a_new_call_is_in_the_generated_header_alone() -> None:
    header = (C_SDK / "tartlet.h").read_text()
    assert not re.search(r"TL_(OP|EVENT|FLAG|PRIORITY)_\w+ =|#define TL_(OP|EVENT|FLAG|PRIORITY)_", header)


def test_the_checked_in_guests_are_fresh() -> None:
    pytest.importorskip("ziglang")
    done = subprocess.run([sys.executable, C_SDK / "build.py", "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("guest", sorted(EXAMPLES.glob("*.wasm")), ids=lambda path: path.stem)
def test_the_checked_in_guests_are_small(guest: Path) -> None:
    assert guest.stat().st_size < 4096


def test_the_headers_own_program_and_command_give_a_guest_that_loses_nothing(
    tmp_path: Path, driver: Driver, host: WasmHost
) -> None:
    pytest.importorskip("ziglang")
    comment = re.sub(r"^ \* ?", "", (C_SDK / "tartlet.h").read_text().partition("*/")[0], flags=re.MULTILINE)
    program = re.search(r"^    int32_t tartlet_main.*?^    }$", comment, re.MULTILINE | re.DOTALL)
    command = re.search(r"^    .venv/bin/python (.*\\\n.*)$", comment, re.MULTILINE)
    assert program is not None
    assert command is not None
    source, target = tmp_path / "my.c", tmp_path / "my.wasm"
    source.write_text('#include "tartlet.h"\n' + program[0])
    files = {"my.c": str(source), "my.wasm": str(target)}
    words = [files.get(word, word) for word in shlex.split(command[1].replace("\\\n", " "))]
    subprocess.run([sys.executable, *words], cwd=ROOT, check=True)
    guest = driver.run(driver.start(host.load(host.aot.compile(target.read_bytes()))))
    assert outcome_of(guest).kind is OutcomeKind.OK
    batch = abi.decode(submitted(guest)[0])
    assert (batch.records["op"].tolist(), batch.payload) == ([abi.Op.SEND], b"hi\n")


def test_every_vector_is_read_and_said_again_to_the_byte(driver: Driver, host: WasmHost) -> None:
    guest = driver.run(driver.start(host.load(host.aot.compile((GUESTS / "vectors.wasm").read_bytes()))))
    for vector in VECTORS:
        driver.run(guest, bytes.fromhex(vector["bytes"]))
        assert submitted(guest).pop().hex() == vector["bytes"], vector["name"]
    assert {int(record["op"]) for vector in VECTORS for record in vector["records"]} == {*abi.Op, *abi.Event}
    guest.kill()


def test_every_packer_makes_its_vectors_to_the_byte(driver: Driver, host: WasmHost) -> None:
    guest = driver.run(driver.start(host.load(host.aot.compile((GUESTS / "calls.wasm").read_bytes()))))
    assert outcome_of(guest).kind is OutcomeKind.OK
    made = [data.hex() for data in submitted(guest)]
    assert made == [vector["bytes"] for vector in VECTORS if vector["kind"] == "submission"]


@pytest.fixture
def completion(host: WasmHost) -> LinkedModule:
    return host.load(host.aot.compile((EXAMPLES / "text_completion.wasm").read_bytes()))


def test_one_message_and_the_end(driver: Driver, host: WasmHost) -> None:
    guest = driver.run(driver.start(host.load(host.aot.compile((EXAMPLES / "send_and_exit.wasm").read_bytes()))))
    assert outcome_of(guest).kind is OutcomeKind.OK
    batch = abi.decode(submitted(guest)[0])
    assert batch.records["op"].tolist() == [abi.Op.SEND]
    assert batch.payload == b"ok"


class Model:
    """Answers a text-completion guest: the next token is the last one plus one, until it is `STOP` modulo 10."""

    def __init__(self, args: list[str]) -> None:
        self.args = args
        self.slots: dict[int, int] = {}
        self.embeds: dict[int, tuple[int, int] | None] = {}
        self.written: dict[int, tuple[int, int]] = {}
        self.prompt = ""
        self.log = b""
        self.ahead: list[int] = []
        self.forwards: list[tuple[list[int], list[int], int]] = []

    def answer(self, data: bytes) -> bytes:
        batch = abi.decode(data)
        out = abi.Writer()
        self.ahead.append(int((batch.records["op"] == abi.Op.SAMPLE).sum()))
        for record in batch.records:
            payload = batch.payload[int(record["offset"]) : int(record["offset"]) + int(record["length"])]
            self.one(record, payload, out)
        return out.finish()

    def one(self, record: np.void, payload: bytes, out: abi.Writer) -> None:
        op, ticket, words = int(record["op"]), int(record["ticket"]), np.frombuffer(payload[: len(payload) & ~3], "<u4")
        if op == abi.Op.GET_ARG:
            out.add(abi.Event.RESULT, ticket=ticket, payload=json.dumps(self.args).encode())
        elif op == abi.Op.GET_MODEL:
            info = {"index": 0, "page_size": PAGE_SIZE, "stop_tokens": [STOP, 900], "bos_token": None}
            out.add(abi.Event.RESULT, ticket=ticket, payload=json.dumps(info, separators=(",", ":")).encode())
        elif op == abi.Op.TOKENIZE:
            self.prompt = payload.decode()
            out.add(abi.Event.RESULT, ticket=ticket, payload=abi.u32(map(ord, self.prompt)))
        elif op == abi.Op.EMBED_TXT:
            embeds, sources, positions = words.reshape(3, -1)
            for embed, source, position in zip(embeds.tolist(), sources.tolist(), positions.tolist(), strict=True):
                token = self.slots[source] if record["b"] else source
                self.embeds[embed] = (token, position)
        elif op == abi.Op.FORWARD:
            n_ikv, n_iemb, n_okv, n_oemb = words[:4].tolist()
            lists = np.split(words[4:], np.cumsum([n_ikv, n_iemb, n_okv]))
            last = None
            for i, embed in enumerate(lists[1].tolist()):
                last = self.embeds[embed]
                slot = int(record["a"]) + i
                assert last is not None
                self.written[int(lists[2][slot // PAGE_SIZE]) * PAGE_SIZE + slot % PAGE_SIZE] = last
            assert n_oemb == 1
            self.embeds[int(lists[3][0])] = last
            self.forwards.append((lists[0].tolist(), lists[2].tolist(), int(record["a"])))
        elif op == abi.Op.SAMPLE:
            params = np.frombuffer(payload, abi.SAMPLE_PARAMS, count=1)[0]
            assert words[8:].tolist() == [STOP, 900]
            assert params["temperature"] == 0
            embed = self.embeds[int(record["a"])]
            assert embed is not None
            token = (embed[0] + 1) % VOCABULARY
            self.slots[int(record["b"])] = token
            out.add(abi.Event.RESULT, ticket=ticket, a=token, b=int(token in {STOP, 900}))
        elif op == abi.Op.DETOKENIZE:
            out.add(abi.Event.RESULT, ticket=ticket, payload=",".join(map(str, words.tolist())).encode())
        elif op == abi.Op.LOG:
            self.log += payload


@pytest.mark.parametrize("ahead", [0, 1, 4])
@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("abcdefgh", range(ord("h") + 1, ord("h") + 13)),
        ("\x01\x02", range(3, 7)),  # up to the stop token
        ('q"\\\n\u00e9\u20ac', range(0x20AC % VOCABULARY + 1, 0x20AC % VOCABULARY + 13)),
    ],
)
def test_text_completion(driver: Driver, completion: LinkedModule, ahead: int, prompt: str, expected: range) -> None:
    model = Model(["--prompt", prompt, "--max-tokens", "12", "--run-ahead", str(ahead)])
    guest = driver.start(completion)
    for _ in range(200):
        if driver.run(guest).phase is Phase.ENDED:
            break
        answers = model.answer(submitted(guest).pop(0))
        driver.run(guest, answers)
    for data in submitted(guest):
        model.answer(data)
    assert outcome_of(guest).kind is OutcomeKind.OK
    assert model.prompt == prompt
    assert model.log.decode() == ",".join(map(str, expected)) + "\n"
    assert max(model.ahead) <= ahead + 1
    stream = [ord(c) for c in prompt] + list(expected)
    for position, token in enumerate(stream[:-1]):
        assert model.written[position] == (token, position)
    for ikv, okv, offset in model.forwards[1:]:
        assert ikv == list(range(okv[0] + 1))
        assert offset < PAGE_SIZE
