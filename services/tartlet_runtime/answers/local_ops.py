"""Operations that the runtime answers itself, at once where it can (architecture, "How a guest meets the host").

Large texts and tokenizers that aren't loaded yet are answered later, off the loop: one program's novel mustn't delay
another's token.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from importlib.metadata import version
from typing import Protocol

import numpy as np

from tartlet_common.abi import Flag, Op, Record
from tartlet_common.engine.pools import Reach
from tartlet_common.errors.registry import InvalidArgument, TartletError, UnsupportedTrait
from tartlet_runtime.abi.guest import STDERR, STDOUT
from tartlet_runtime.answers.chat import format_chat, special_texts
from tartlet_runtime.answers.deferred import Answers, Bench, Job, Waiter, Work
from tartlet_runtime.answers.models import AnyTokenizer, ModelTable, Spawn
from tartlet_runtime.answers.tokens import TokenizerEntry
from tartlet_runtime.children.child_ops import Answers as ChildAnswers
from tartlet_runtime.children.child_ops import ChildOps, Parent
from tartlet_runtime.web.http_ops import Answers as HttpAnswers
from tartlet_runtime.web.http_ops import Asker, HttpOps

FIRST_ENGINE_S = 30.0
"""How long a program that asks for a model waits for the first engine to join control."""
BIG_BYTES = 32 << 10
"""What one program may have worked on at once in a turn; the rest goes to a thread."""
_TOKEN_COST = 16
"""Bytes of text that take as long as packing one token of a vocabulary."""
_AWAIT = int(Flag.AWAIT)
_RELEASE = version("tartlet").encode()


class OutputSink(Protocol):
    """A program's output, as far as its own commands go."""

    def write(self, stream: int, data: bytes) -> None:
        """Add to stdout or stderr."""

    def send(self, message: bytes) -> None:
        """Send a message to the clients."""


class Inbox(Answers, HttpAnswers, ChildAnswers, Protocol):
    """A program's inbox."""


class Caller(Waiter, Asker, Parent, Protocol):
    """The program that asks."""

    @property
    def inbox(self) -> Inbox:
        """Where its answers go."""

    program_id: str
    model: str
    reach: Reach
    """The engines whose models the program sees."""
    eager_bytes: int
    """Payloads worked on at once since its last turn."""

    def continue_with(self, record: Record, payload: bytes) -> None:
        """Begin the next run that a CONTINUE asks for when this one has ended well."""

    @property
    def args(self) -> tuple[str, ...]:
        """What it was launched with."""

    @property
    def output(self) -> OutputSink:
        """Where its output goes."""


class LocalOps:
    """Runs rows of `Submission.local`."""

    def __init__(
        self,
        models: ModelTable,
        spawn: Spawn,
        web: HttpOps,
        children: ChildOps,
        *,
        first_engine_s: float = FIRST_ENGINE_S,
    ) -> None:
        """Make the table of operations.

        Args:
            models: what control tells of models.
            spawn: owns the tasks of answers that come later.
            web: makes HTTP requests.
            children: starts programs.
            first_engine_s: seconds that a program which asks for a model waits for the first engine.
        """
        self.resume = children.resume
        """Called with a program that has begun again and goes on live."""
        self._models = models
        self._spawn = spawn
        self._first_engine_s = first_engine_s
        self._bench = Bench(spawn)
        self._table: dict[int, Callable[[Caller, Record, bytes], bytes | None]] = {
            Op.LOG: self._log,
            Op.SEND: self._send,
            Op.RECEIVE: self._receive,
            Op.GET_ARG: self._get_arg,
            Op.AVAILABLE_MODELS: self._available_models,
            Op.GET_MODEL: self._get_model,
            Op.TOKENIZE: self._tokenize,
            Op.DETOKENIZE: self._detokenize,
            Op.GET_VOCABS: self._vocabulary,
            Op.FORMAT_CHAT: self._format_chat,
            Op.GET_VERSION: lambda _caller, _record, _payload: _RELEASE,
            Op.GET_INSTANCE_ID: lambda caller, _record, _payload: caller.program_id.encode(),
            Op.PROMPT_TEMPLATE: self._prompt_template,
            Op.GET_ALL_ADAPTERS: self._adapters,
            Op.CONTINUE: lambda caller, record, payload: caller.continue_with(record, payload),
            Op.HTTP_REQUEST: web.request,
            Op.HTTP_READ: lambda caller, record, _payload: web.read(caller, record),
            Op.HTTP_CLOSE: lambda caller, record, _payload: web.close(caller, record),
            Op.SPAWN: children.spawn,
            Op.CHILD_SEND: children.send,
            Op.CHILD_NEXT: lambda caller, record, _payload: children.next(caller, record),
            Op.CHILD_KILL: children.kill,
        }

    def close(self) -> None:
        """Begin no more work beside the loop."""
        self._bench.close()

    def model_info(self, index: int, reach: Reach) -> bytes:
        """Return what GET_MODEL tells about the model of a number.

        Raises:
            UnknownModel: the program sees none.
        """
        return self._models.by_index(index, reach).info_json()

    def run(self, caller: Caller, record: Record, payloads: bytes) -> None:
        """Execute one record; its payload lies in `payloads`."""
        payload = payloads[record.offset : record.offset + record.length]
        try:
            answer = self._table[record.op](caller, record, payload)
        except TartletError as e:
            caller.inbox.refuse(record, e)
            return
        if answer is not None:
            caller.inbox.answer(record, answer)

    def _log(self, caller: Caller, record: Record, payload: bytes) -> None:
        caller.output.write(STDERR if record.a == STDERR else STDOUT, payload)

    def _send(self, caller: Caller, record: Record, payload: bytes) -> None:
        caller.output.send(payload)

    def _receive(self, caller: Caller, record: Record, payload: bytes) -> None:
        if record.flags & _AWAIT:  # else it would take a message that nobody gets
            caller.inbox.receive(record.ticket)

    def _get_arg(self, caller: Caller, record: Record, payload: bytes) -> bytes | None:
        return json.dumps(caller.args).encode() if record.flags & _AWAIT else None

    def _available_models(self, caller: Caller, record: Record, payload: bytes) -> bytes:
        return json.dumps(self._models.names_with(_traits(payload), caller.reach)).encode()

    def _get_model(self, caller: Caller, record: Record, payload: bytes) -> bytes | None:
        name = _text(payload) or caller.model
        if self._models.known.is_set() or not record.flags & _AWAIT:
            return self._models.info(name, caller.reach)
        self._bench.wait(caller, record, len(payload), lambda: self._info_once_known(name, caller.reach))
        return None

    async def _info_once_known(self, name: str, reach: Reach) -> bytes:
        """Return GET_MODEL's answer once an engine has joined.

        Raises:
            NoEngine: no engine has joined for `first_engine_s`.
            UnknownModel: an engine has joined, of another model.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._first_engine_s):
                await self._models.known.wait()
        return self._models.info(name, reach)

    def _prompt_template(self, caller: Caller, record: Record, payload: bytes) -> bytes | None:
        template = self._models.by_index(record.a, caller.reach).spec.chat_template
        return template.encode() if record.flags & _AWAIT else None

    def _adapters(self, caller: Caller, record: Record, payload: bytes) -> bytes | None:
        adapters = self._models.by_index(record.a, caller.reach).spec.adapters
        told = [{"name": a.name, "number": a.number, "rank": a.rank, "digest": a.digest} for a in adapters]
        return json.dumps(told, separators=(",", ":")).encode() if record.flags & _AWAIT else None

    def _tokenize(self, caller: Caller, record: Record, payload: bytes) -> bytes | None:
        text = _text(payload)
        return self._with_tokenizer(caller, record, len(payload), lambda t: t.encode(text, special=bool(record.b)))

    def _detokenize(self, caller: Caller, record: Record, payload: bytes) -> bytes | None:
        if len(payload) % 4:
            raise InvalidArgument(argument="ids", detail=f"{len(payload)} bytes are no list of u32")
        ids = np.frombuffer(payload, "<u4").tolist()
        return self._with_tokenizer(caller, record, len(payload), lambda t: t.decode(ids, special=bool(record.b)))

    def _vocabulary(self, caller: Caller, record: Record, payload: bytes) -> bytes | None:
        first, count = record.b, record.c
        size = 0  # the whole is kept packed
        if first or count:
            vocab = self._models.by_index(record.a, caller.reach).spec.vocab_size
            size = _TOKEN_COST * min(count or vocab, vocab)
        return self._with_tokenizer(caller, record, size, lambda t: t.words(first, count))

    def _format_chat(self, caller: Caller, record: Record, payload: bytes) -> bytes | None:
        model = self._models.by_index(record.a, caller.reach)
        spec = model.spec
        if not spec.chat_template:
            raise UnsupportedTrait(model=model.name, trait="a chat template")

        def render(tokenizer: AnyTokenizer) -> bytes:
            bos, eos = special_texts(spec, tokenizer.text_of)
            text = format_chat(spec.chat_template, payload, bos_token=bos, eos_token=eos)
            if not record.b:
                return text.encode()
            tokens = tokenizer.encode(text, special=False)
            return b"".join(((len(tokens) // 4).to_bytes(4, "little"), tokens, text.encode()))

        return self._with_tokenizer(caller, record, len(payload), render)

    def _with_tokenizer(self, caller: Caller, record: Record, size: int, work: Work) -> bytes | None:
        """Do `work`, as long as for `size` bytes of text: at once if short and the tokenizer is there, else later."""
        tokenizer = self._models.tokenizer(record.a, caller.reach)
        if not record.flags & _AWAIT:  # the answer is all there would be of it
            return None
        caller.eager_bytes += size
        if isinstance(tokenizer, TokenizerEntry) and caller.eager_bytes <= BIG_BYTES:
            return work(tokenizer)
        self._bench.put(caller, Job(record, size, tokenizer, work))
        return None


def _text(payload: bytes) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError as e:
        raise InvalidArgument(argument="text", detail=f"not UTF-8: {e}") from e


def _traits(payload: bytes) -> list[str]:
    try:
        traits = json.loads(payload or b"[]")
    except (ValueError, RecursionError) as e:
        raise InvalidArgument(argument="traits", detail=f"not JSON: {e}") from e
    if not isinstance(traits, list) or not all(isinstance(trait, str) for trait in traits):
        raise InvalidArgument(argument="traits", detail="a list of texts is wanted")
    return traits
