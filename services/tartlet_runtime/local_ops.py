"""Operations that the runtime answers itself, at once where it can (architecture, "How a guest meets the host").

Large texts and tokenizers that aren't loaded yet are answered later, off the loop: one program's novel mustn't delay
another's token.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Protocol

import numpy as np

from tartlet_common.abi import Op
from tartlet_common.errors import InternalError, InvalidArgument, TartletError, TooManyCommands, UnsupportedTrait
from tartlet_runtime.chat import format_chat
from tartlet_runtime.guest import STDERR, STDOUT
from tartlet_runtime.limits import MAX_DEFERRED
from tartlet_runtime.models import ModelTable, Spawn
from tartlet_runtime.submission import Row
from tartlet_runtime.tokens import TokenizerEntry

log = logging.getLogger(__name__)

BIG_BYTES = 32 << 10
"""What one program may have worked on at once in a turn; the rest goes to a thread."""


class Caller(Protocol):
    """The program that asks."""

    args: tuple[str, ...]
    model: str
    deferred: int
    """Answers of its that are worked on beside the loop."""
    eager_bytes: int
    """Payloads worked on at once since its last turn."""

    def write(self, stream: int, data: bytes) -> None:
        """Add to its stdout or stderr."""

    def send(self, message: bytes) -> None:
        """Send a message to its clients."""

    def receive(self, ticket: int) -> None:
        """Answer `ticket` with its next message."""

    def answer(self, row: Row, payload: bytes) -> None:
        """Answer a record, if it awaits an answer."""

    def refuse(self, row: Row, error: TartletError) -> None:
        """Answer a record with an error; raise it if nobody awaits the answer."""

    def refuse_later(self, row: Row, error: TartletError) -> None:
        """The same, not from within the guest's step: an error that nobody awaits ends the program."""


Work = Callable[[TokenizerEntry], bytes]


class LocalOps:
    """Runs rows of `Submission.local`."""

    def __init__(self, models: ModelTable, spawn: Spawn) -> None:
        """`spawn` owns the tasks of answers that come later."""
        self._models = models
        self._spawn = spawn
        self._table: dict[int, Callable[[Caller, Row, bytes], bytes | None]] = {
            Op.LOG: self._log,
            Op.SEND: self._send,
            Op.RECEIVE: self._receive,
            Op.GET_ARG: lambda caller, _row, _payload: json.dumps(caller.args).encode(),
            Op.AVAILABLE_MODELS: lambda _caller, _row, _payload: json.dumps(models.names()).encode(),
            Op.GET_MODEL: lambda caller, _row, payload: models.info(_text(payload) or caller.model),
            Op.TOKENIZE: self._tokenize,
            Op.DETOKENIZE: self._detokenize,
            Op.GET_VOCABS: self._vocabulary,
            Op.FORMAT_CHAT: self._format_chat,
        }

    def run(self, caller: Caller, row: Row, payloads: bytes) -> None:
        """Execute one row; its payload lies in `payloads`."""
        payload = payloads[row[7] : row[7] + row[8]]
        try:
            answer = self._table[row[0]](caller, row, payload)
        except TartletError as e:
            caller.refuse(row, e)
            return
        if answer is not None:
            caller.answer(row, answer)

    def _log(self, caller: Caller, row: Row, payload: bytes) -> None:
        caller.write(STDERR if row[4] == STDERR else STDOUT, payload)

    def _send(self, caller: Caller, row: Row, payload: bytes) -> None:
        caller.send(payload)

    def _receive(self, caller: Caller, row: Row, payload: bytes) -> None:
        caller.receive(row[2])

    def _tokenize(self, caller: Caller, row: Row, payload: bytes) -> bytes | None:
        text = _text(payload)
        return self._with_tokenizer(caller, row, len(payload), lambda t: t.encode(text, special=bool(row[5])))

    def _detokenize(self, caller: Caller, row: Row, payload: bytes) -> bytes | None:
        if len(payload) % 4:
            raise InvalidArgument(argument="ids", detail=f"{len(payload)} bytes are no list of u32")
        ids = np.frombuffer(payload, "<u4").tolist()
        return self._with_tokenizer(caller, row, len(payload), lambda t: t.decode(ids, special=bool(row[5])))

    def _vocabulary(self, caller: Caller, row: Row, payload: bytes) -> bytes | None:
        return self._with_tokenizer(caller, row, 0, lambda t: t.words(row[5], row[6]))

    def _format_chat(self, caller: Caller, row: Row, payload: bytes) -> bytes | None:
        model = self._models.by_index(row[4])
        spec = model.spec
        if not spec.chat_template:
            raise UnsupportedTrait(model=model.name, trait="a chat template")
        eos = spec.stop_tokens[0] if spec.stop_tokens else None

        def render(tokenizer: TokenizerEntry) -> bytes:
            bos_text, eos_text = tokenizer.text_of(spec.bos_token), tokenizer.text_of(eos)
            return format_chat(spec.chat_template, payload, bos_token=bos_text, eos_token=eos_text).encode()

        return self._with_tokenizer(caller, row, len(payload), render)

    def _with_tokenizer(self, caller: Caller, row: Row, size: int, work: Work) -> bytes | None:
        """Do `work` at once if the tokenizer is there and the payload small, else later."""
        tokenizer = self._models.tokenizer(row[4])
        caller.eager_bytes += size
        if isinstance(tokenizer, TokenizerEntry) and caller.eager_bytes <= BIG_BYTES:
            return work(tokenizer)
        if caller.deferred >= MAX_DEFERRED:
            raise TooManyCommands(in_flight=caller.deferred, limit=MAX_DEFERRED)
        caller.deferred += 1
        self._spawn(self._later(caller, row, tokenizer, work))
        return None

    async def _later(
        self, caller: Caller, row: Row, tokenizer: TokenizerEntry | asyncio.Future[TokenizerEntry], work: Work
    ) -> None:
        try:
            if not isinstance(tokenizer, TokenizerEntry):
                tokenizer = await asyncio.shield(tokenizer)
            caller.answer(row, await asyncio.to_thread(work, tokenizer))
        except TartletError as e:
            caller.refuse_later(row, e)
        except Exception as e:  # our own bug: who waits for this answer is told
            log.exception("an answer that was worked on beside the loop")
            caller.refuse_later(row, InternalError(detail=repr(e)))
        finally:
            caller.deferred -= 1


def _text(payload: bytes) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError as e:
        raise InvalidArgument(argument="text", detail=f"not UTF-8: {e}") from e
