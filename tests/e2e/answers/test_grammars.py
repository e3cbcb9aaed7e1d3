"""Generated grammars on the demo model and on the fake engine, the bounds of what is compiled, and roles that die."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import tartlet
from tests.e2e.generated_grammars import Made, expressions, schemas
from tests.e2e.serving import Serving, message, program, serving, until_nothing_is_held
from tests.run_directory import run_directory

FINISH = 0.8
"""The share of texts that must come to an end."""
ENDS = ("grammar", "token")


@pytest.fixture(scope="module")
def demo() -> Iterator[Serving]:
    with run_directory() as directory, serving(directory, engine="torch") as running:
        yield running


def outcomes(server: Serving, made: Sequence[Made], **more: Any) -> list[dict[str, Any]]:
    """Run one program that generates a text for each grammar; return what came of each, in order."""
    given = {"work": [[m.kind, m.text] for m in made], "prompt": "A record in JSON: ", "seed": 1}
    given |= {"temperature": 0.7, "max_tokens": 300, "run_ahead": 4, "together": 16} | more
    with tartlet.Client(server.address) as client:
        run = client.run(program("grammars"), [json.dumps(given)])
        told = [json.loads(event.data) for event in run if isinstance(event, tartlet.Message)]
    assert run.ended is not None
    assert run.ended.success, run.ended.error
    assert len(told) == len(made)
    return sorted(told, key=lambda one: int(one["at"]))


@pytest.mark.parametrize(
    ("num_schemas", "num_expressions", "seed"),
    [(40, 15, 7), pytest.param(500, 50, 1, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])],
)
def test_texts_of_generated_grammars_end_and_fit(
    demo: Serving, num_schemas: int, num_expressions: int, seed: int
) -> None:
    for made in (schemas(num_schemas, seed), expressions(num_expressions, seed)):
        told = outcomes(demo, made, seed=seed)
        wrong = [
            (one, grammar.text)
            for one, grammar in zip(told, made, strict=True)
            if one["why"] in ENDS and not grammar.fits(one["text"])
        ]
        ends = Counter(one["why"] for one in told)
        print(f"{len(made)} grammars of {made[0].kind.name}: {dict(ends)}")  # noqa: T201 - a soak's figures
        assert not wrong
        assert sum(ends[why] for why in ENDS) >= FINISH * len(made), ends


@pytest.mark.parametrize("seed", range(3))
def test_run_ahead_and_skipped_tokens_change_no_token(server: Serving, seed: int) -> None:
    made = [*schemas(10, seed), *expressions(6, seed)]
    at_once, *others = (
        outcomes(
            server,
            made,
            seed=seed,
            temperature=1.0,
            max_tokens=60,
            run_ahead=steps,
            together=together,
            skip_forced=skip,
        )
        for steps, together, skip in ((0, 1, False), (4, 8, False), (0, 8, True), (2, 8, True))
    )
    for other in others:
        assert [one["tokens"] for one in other] == [one["tokens"] for one in at_once]
        assert [one["why"] for one in other] == [one["why"] for one in at_once]
    forced = [sum(one.get("forced", 0) for one in told) for told in (at_once, *others)]
    assert forced[:2] == [0, 0]
    assert forced[2] >= forced[3] > 0


BOUNDS = """
from inferlet import create_queue, get_model, json_schema, regex, send
from inferlet.errors import TartletError

async def main(args):
    queue = create_queue(await get_model())
    held = []

    async def told(grammar):
        try:
            held.append(await queue.alloc_grammar(grammar))
        except TartletError as e:
            return [type(e).__name__, e.fields.get("kind")]
        return "fine"

    def free():
        while held:
            queue.dealloc_grammar(held.pop())

    assert await told(regex("a" * ((256 << 10) + 1))) == ["GrammarRefused", None]
    assert await told(regex("(" * 100_000)) == ["GrammarRefused", None]
    assert await told(json_schema("[" * 100_000)) == ["GrammarRefused", None]
    for at in range(64):
        assert await told(regex(f"a{at}")) == "fine", at
    assert await told(regex("b")) == ["ResourceQuotaExceeded", "grammars"]
    free()
    long = "x" * (250 << 10)
    outcomes = [await told(regex(f"[{long}]|{at}")) for at in range(5)]
    assert outcomes == ["fine"] * 4 + [["ResourceQuotaExceeded", "bytes of grammars"]], outcomes
    free()
    assert await told(regex("b")) == "fine"
    return "held to its bounds"
"""


def test_number_bytes_and_faults_of_grammars_are_a_programs_own_errors(server: Serving) -> None:
    with tartlet.Client(server.address) as client:
        run = client.run(tartlet.Source.python(BOUNDS), [])
        list(run)
    assert run.ended is not None
    assert run.ended.success, run.ended.error
    assert run.ended.result == "held to its bounds"


SCHEMA = {"type": "array", "items": {"type": "boolean"}, "minItems": 12, "maxItems": 12}
WRITES = """
import json
from inferlet import Context, Temperature, json_schema, receive, send

async def main(args):
    async with Context(seed=3, run_ahead=int(args[1])) as ctx:
        ctx.fill("A list: ")
        how = {"grammar": json_schema(args[0]), "skip_forced": args[2] == "skipped"}
        if args[2] == "penalised":
            how = {"frequency_penalty": 1.5, "repetition_penalty": 1.2, "eos": False}
        written = ctx.generate(max_tokens=60 if "eos" in how else 300, sampler=Temperature(0.9), **how)
        waits = [4, 9]
        async for _ in written:
            if waits and len(written.tokens) >= waits[0]:
                waits.pop(0)
                send("waits")
                await receive()
    assert (written.num_forced > 0) == (args[2] == "skipped")
    return json.dumps([written.text, written.tokens])
"""


async def written(server: Serving, client: tartlet.AsyncClient, how: str, *killed: str) -> Any:
    """Runs the program, and kills a role at each of its waits; returns its text and tokens."""
    run_ahead = "0" if how == "skipped" else "4"
    run = await client.run(tartlet.Source.python(WRITES), [json.dumps(SCHEMA), run_ahead, how])
    for role in killed or ("", ""):
        assert await message(run) == "waits"
        if role:
            serves = server.text().count(f"{role} serves")
            server.kill(role)
            await asyncio.to_thread(server.until, f"{role} serves", serves + 1)
        await client.send(run.program_id, b"go on")
    ended = await run.wait()
    assert ended.success, ended.error
    return json.loads(str(ended.result))


async def test_a_text_under_a_json_schema_is_the_same_when_worker_and_control_die(demo: Serving) -> None:
    async with asyncio.timeout(150), tartlet.AsyncClient(demo.address) as client:
        undisturbed = await written(demo, client, "followed")
        value = json.loads(undisturbed[0])
        assert len(value) == SCHEMA["minItems"]
        assert all(type(each) is bool for each in value)
        assert await written(demo, client, "followed", "worker", "control") == undisturbed
        assert await written(demo, client, "skipped", "worker", "control") == undisturbed
        await until_nothing_is_held(client)


async def test_penalties_count_the_same_when_worker_and_control_die(demo: Serving) -> None:
    async with asyncio.timeout(150), tartlet.AsyncClient(demo.address) as client:
        undisturbed = await written(demo, client, "penalised")
        assert len(undisturbed[1]) == 60
        assert await written(demo, client, "penalised", "worker", "control") == undisturbed
        await until_nothing_is_held(client)
