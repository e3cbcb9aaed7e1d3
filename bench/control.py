"""What control costs by itself: microseconds of one core a command, with an engine that answers at once.

Each program embeds, forwards over its page table and samples for every token. Frames are encoded outside of the
measured time, and neither frames nor steps leave the process. The first token of a program isn't measured, because its
step also brings the pages of the whole context, and the program's book takes them in. Several contexts take turns. The
quickest repetition counts. Times are CPU times.
"""

from __future__ import annotations

import gc
import struct
import sys
import time
from collections.abc import Callable
from typing import Any, get_args

import numpy as np

from bench.harness import report
from bench.product.common import (
    BatchResult,
    ControlSettings,
    EngineSpec,
    Kind,
    Op,
    Step,
    StepResult,
    SystemClock,
    abi,
    step_to_proto,
)
from bench.product.control import BATCHING, Core, StartRequest, idle, note_all

PAGE_SIZE = 16
CONTEXT = 128
GOAL_US = 10.0
GOAL_TOKEN_US = 10.0
GOAL_OVER_SHORT = 1.2
POLICIES: tuple[str, ...] = get_args(ControlSettings.model_fields[BATCHING].annotation)
_EMPTY_I32, _EMPTY_F32 = np.zeros(0, np.int32), np.zeros(0, np.float32)


def spec() -> EngineSpec:
    """Describe a large engine."""
    return EngineSpec(
        model="m", model_digest="", family="fake", dtype="float32", device="cpu", page_size=PAGE_SIZE,
        num_pages=1 << 20,
        num_embeds=1 << 14, num_slots=1 << 14, vocab_size=32_000, max_position=1 << 20, max_batch_tokens=8192,
        max_batch_commands=1024, top_k_limit=256,
        kv_bytes_per_token=1, tokenizer_digest="",
    )  # fmt: skip


def answer(step: Step) -> StepResult:
    """Answer every command of a step with success."""
    results = []
    for batch in step.batches:
        n = len(batch.lane)
        m = n if batch.kind == Kind.SAMPLE else 0
        results.append(
            BatchResult(
                np.zeros(n, np.uint8),
                np.zeros(n, np.uint32),
                np.zeros(m, np.int32),
                np.zeros(m, np.uint8),
                np.zeros(m, np.float32),
                _EMPTY_I32,
                _EMPTY_I32,
                _EMPTY_F32,
            )
        )
    return StepResult(step.number, tuple(results), 0, 0.0)


def frame(programs: int, position: int, context: int, *, lists: bool) -> tuple[bytes, bytes, bytes]:
    """Make the columns of one token of every program: embed from a slot, forward, sample.

    `position` counts the tokens, `context` the tokens before the first of them. With `lists`, the forward names all
    pages of the context; else it names the program's page table, which gets a new row where a page is full.
    """
    rows, handles, payload = [], [], bytearray()
    at = context + position
    pages = at // PAGE_SIZE + 1
    params = struct.pack("<fIffQII", 0.7, 0, 0.9, 0.0, 1, 0, 1) + abi.u32([2])
    parts = [
        (Op.EMBED_TXT, 0, 1, 1, 0, abi.u32([0, 0, at])),
        (Op.FORWARD, 0, at % PAGE_SIZE, 0, 0, abi.u32([pages, 1, 1, 1, *range(pages), 0, pages - 1, 0]))
        if lists
        else (Op.FORWARD_TABLE, 0, 0, at, 0, abi.u32([1, 1, 0, 0, 0])),
        (Op.SAMPLE, 1, 0, 0, 0, params),
    ]
    if not lists and at % PAGE_SIZE == 0:
        parts.insert(0, (Op.TABLE, 0, 0, at, 1, b""))
    for handle in range(1, programs + 1):
        for op, flags, a, b, c, data in parts:
            rows.append((int(op), flags, 4 * position + 1, 0, a, b, c, len(payload), len(data)))
            handles.append(handle)
            payload += data
    return np.array(handles, "<u4").tobytes(), np.array(rows, abi.RECORD).tobytes(), bytes(payload)


def encode(steps: list[Step]) -> int:
    """Count the bytes of the steps' frames."""
    return sum(len(step_to_proto(step).SerializeToString()) for step in steps)


def run(programs: int, tokens: int, policy: str, context: int, *, lists: bool) -> dict[str, float]:
    """Run all tokens; seconds spent in each part."""
    settings: dict[str, object] = {BATCHING: policy}
    if "prefix_cache" in ControlSettings.model_fields:  # all prompts are equal, and each is to be computed
        settings["prefix_cache"] = False
    core = Core(ControlSettings.model_validate(settings), SystemClock())
    engine = core.on_engine("e", "i", spec())
    session = core.on_runtime("r", "i", "", [])
    rows = []
    prompt_pages = -(-context // PAGE_SIZE)
    for handle in range(1, programs + 1):
        core.on_start(session, StartRequest(handle, f"p{handle}"))
        rows += [(handle, Op.ALLOC_EMB, 0, [0]), (handle, Op.ALLOC_SLOT, 0, [0])]
        if lists:
            rows.append((handle, Op.ALLOC_KVPAGE, 0, list(range(prompt_pages + tokens // PAGE_SIZE + 2))))
        else:
            rows.append((handle, Op.TABLE, prompt_pages, []))
    for handle, op, c, ids in rows:
        data = abi.u32(ids)
        record = np.array([(int(op), 0, 1, 0, 0, 0, c, 0, len(data))], abi.RECORD)
        core.on_commands(session, np.array([handle], "<u4").tobytes(), record.tobytes(), data)
    spent = dict.fromkeys(("frame in", "plan and pack", "step codec", "settle", "frame out"), 0.0)
    clock = time.thread_time  # what other processes take of the core meanwhile is not control's

    def timed(name: str, action: Callable[..., Any], *args: Any) -> Any:
        start = clock()
        value = action(*args)
        spent[name] += clock() - start
        return value

    for token in range(tokens + 1):
        if token == 1:
            note_all(core)
            spent = dict.fromkeys(spent, 0.0)
        columns = frame(programs, token, prompt_pages * PAGE_SIZE, lists=lists)
        timed("frame in", core.on_commands, session, *columns)
        while not idle(core):
            timed("plan and pack", core.pump)
            steps, engine.outgoing = engine.outgoing, []
            timed("step codec", encode, steps)
            for result in [answer(s) for s in steps]:
                timed("settle", core.on_result, engine, result)
        chunks, _ = timed("frame out", session.outbox.take)
        assert sum(len(c.records) for c in chunks) == programs * abi.RECORD_BYTES
    return spent


def table(context: int, spent: dict[str, float], programs: int, tokens: int) -> report.Report:
    """Make a table for one length of context: a row for each part of `spent`, in seconds, and one for their sum."""
    columns = ["part", "us a command", "us a token", "ms a step"]
    title = f"Control's work, {programs} programs, {tokens} tokens each, context {context}"
    result = report.Report("control" if context == CONTEXT else f"control-{context}", title, columns)
    commands = programs * tokens * 3
    total = sum(spent.values())
    for name, seconds in (*spent.items(), ("total", total)):
        result.rows.append(
            (name, 1e6 * seconds / commands, 1e6 * seconds / (programs * tokens), 1e3 * seconds / tokens)
        )
    if context == CONTEXT:
        result.goals.append(report.Goal("us a command", 1e6 * total / commands, GOAL_US, at_least=False))
        us = 1e6 * total / (programs * tokens)
        result.goals.append(report.Goal(f"us a token, {programs} programs", us, GOAL_TOKEN_US, at_least=False))
    return result


def compare(best: dict[int, dict[str, float]], longest: report.Report) -> None:
    """Add the goal for the cost behind the longest context over that behind the shortest."""
    costs = {context: sum(spent.values()) for context, spent in best.items()}
    name = f"{max(costs)} tokens of context over {min(costs)}"
    ratio = costs[max(costs)] / costs[min(costs)]
    longest.goals.append(report.Goal(name, ratio, GOAL_OVER_SHORT, at_least=False))


def _contexts(text: str) -> list[int]:
    return [report.positive(part) for part in text.split(",")]


def main() -> int:
    """Run the command line."""
    parser = report.parser("control", __doc__, plots=False)
    for flag, default, told in (("--programs", 128, "at once"), ("--tokens", 64, "of each program")):
        text = f"{told} (default %(default)s)"
        parser.add_argument(flag, type=report.positive, default=default, metavar="N", help=text)
    parser.add_argument(
        "--context",
        type=_contexts,
        default=[CONTEXT],
        metavar="N,...",
        help=f"tokens of context behind each new token, a table each (default {CONTEXT}); the goal is for {CONTEXT}",
    )
    parser.add_argument("--lists", action="store_true", help="name all pages in every forward, not a page table")
    parser.add_argument("--batching", choices=POLICIES, default=POLICIES[0], help="policy (default %(default)s)")
    parser.add_argument("--profile", action="store_true", help="print a profile of one repetition, and nothing else")
    args = parser.parse_args()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)

    def once(context: int) -> dict[str, float]:
        return run(args.programs, args.tokens, args.batching, context, lists=args.lists)

    if args.profile:
        import cProfile

        cProfile.runctx("once(args.context[0])", globals(), locals(), sort="tottime")
        return 0
    rounds = [{context: once(context) for context in args.context} for _ in range(args.repeat)]
    best = {c: min((seen[c] for seen in rounds), key=lambda spent: sum(spent.values())) for c in args.context}
    tables = {c: table(c, spent, args.programs, args.tokens) for c, spent in best.items()}
    if len(best) > 1:
        compare(best, tables[max(best)])
    return report.emit(list(tables.values()), args)


if __name__ == "__main__":
    sys.exit(main())
