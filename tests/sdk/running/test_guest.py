"""Running a program's source: entry points, output, results and tracebacks, as both hosts do it."""

from __future__ import annotations

import gc
import os
import random
import textwrap

import pytest

from inferlet import errors
from tests.sdk.host.harness import run_source
from tests.sdk.host.mini_host import MiniHost


def source(text: str) -> str:
    """A program, unindented."""
    return textwrap.dedent(text).lstrip()


def failure(text: str, *args: str) -> tuple[BaseException, str]:
    """What a program raises, and what its user reads."""
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - any
        run_source(MiniHost(), source(text), *args)
    return caught.value, caught.value.guest_traceback  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("async def main(): return 41 + 1", "42"),
        ("async def main(args): return args[0] + args[1]", "xy"),
        ("def main(): return 'sync'", "sync"),
        ("def main(*args): return args", "(['x', 'y'],)"),
        ("async def main(): pass", None),
        ("value = 1", None),
        ("import sys\ndef main(): return sys.argv[1:]", "['x', 'y']"),
        ("import inferlet\ndef main(): return inferlet.get_arg()", "['x', 'y']"),
        ("import sys\nasync def main(): sys.exit()", None),
        ("import sys\nasync def main(): sys.exit(0)", None),
    ],
)
def test_what_main_returns_is_the_result(text: str, result: str | None) -> None:
    assert run_source(MiniHost(), text, "x", "y") == result


def test_a_sampler_that_can_not_be_shows_the_program_s_line_alone() -> None:
    text = """
        from inferlet import Temperature
        async def main():
            Temperature(-1)
    """
    with pytest.raises(Exception, match="emperature") as raised:
        run_source(MiniHost(), source(text))
    shown = raised.value.guest_traceback  # type: ignore[attr-defined]
    assert "<string>" not in shown
    assert "Temperature(-1)" in shown


def test_tokens_that_no_vocabulary_has_are_refused_where_they_are_filled_in() -> None:
    text = """
        from inferlet import Context
        async def main():
            Context().fill_tokens([1, 99999])
    """
    with pytest.raises(Exception, match="99999 is not in the vocabulary of"):
        run_source(MiniHost(), source(text))


def test_classes_of_the_program_find_their_module() -> None:
    text = """
        import dataclasses, pickle, typing
        @dataclasses.dataclass
        class Point:
            x: "int"
        def main():
            assert typing.get_type_hints(Point) == {"x": int}
            return pickle.loads(pickle.dumps(Point(3))).x
    """
    assert run_source(MiniHost(), source(text)) == "3"


def test_prints_reach_the_client_in_order_with_messages() -> None:
    host = MiniHost()
    text = """
        import sys, inferlet
        async def main():
            print("one", end="")
            inferlet.send("two")
            print("three", file=sys.stderr)
            sys.stdout.buffer.write(b"\\xff")
            print("end", end="")
    """
    run_source(host, source(text))
    assert host.log == {1: b"one\xffend", 2: b"three\n"}
    assert host.sent == [b"two"]
    assert [op.name for op in host.ops[:3]] == ["LOG", "SEND", "LOG"]


def test_a_finished_line_leaves_at_once_and_a_streamed_piece_with_the_next_wait() -> None:
    host = MiniHost()
    text = """
        from inferlet import synchronize
        async def main():
            print("line")
            print("piece", end="", flush=True)
            await synchronize()
            print("twice", end="", flush=True)
            print(" flushed", end="", flush=True)
            while True: pass
    """

    class Stuck(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Stuck

    import signal

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(Stuck):
            run_source(host, source(text))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert host.log[1] == b"line\npiecetwice flushed"
    sizes = [len(s) for s in host.submissions]
    assert len(sizes) == 3, "one for the line, one with the wait, one for the second flush"


def test_a_traceback_shows_the_program_s_frames_and_lines_alone() -> None:
    error, shown = failure(
        """
        import inferlet

        async def helper():
            await inferlet.get_next_dist(inferlet.Embed(7))

        async def main():
            await helper()
        """
    )
    assert isinstance(error, errors.UnknownResource)
    assert shown.splitlines() == [
        "Traceback (most recent call last):",
        '  File "prog.py", line 7, in main',
        "    await helper()",
        '  File "prog.py", line 4, in helper',
        "    await inferlet.get_next_dist(inferlet.Embed(7))",
        "inferlet.errors.UnknownResource: embed 7 is not allocated",
        "Allocate it first; a freed or never allocated id can't be used.",
    ]


def test_a_traceback_counts_lines_as_python_does() -> None:
    _, shown = failure("x = 1\n\x0c\ny = '\u2028'\n\n\nasync def main():\n    return 1 / 0  # here\n")
    assert '  File "prog.py", line 7, in main\n    return 1 / 0  # here\n' in shown


def test_a_long_chain_of_causes_is_shown() -> None:
    _, shown = failure(
        """
        async def main():
            last = None
            for i in range(1200):
                try:
                    raise ConnectionError(f"attempt {i}") from last
                except ConnectionError as e:
                    last = e
            raise last
        """
    )
    assert shown.count("ConnectionError: attempt") == 1200


def test_a_traceback_of_a_group_shows_each_task_s_frames() -> None:
    _, shown = failure(
        """
        import asyncio

        async def fails(n):
            raise ValueError(n)

        async def main():
            async with asyncio.TaskGroup() as group:
                group.create_task(fails(1))
                group.create_task(fails(2))
        """
    )
    assert shown.count('File "prog.py", line 4, in fails') == 2
    assert "asyncio" not in shown.replace("asyncio.TaskGroup", "")
    assert "inferlet/" not in shown


def test_debug_shows_all_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TARTLET_DEBUG", "1")
    _, shown = failure("async def main(): 1 / 0")
    assert "_running/guest.py" in shown


def test_a_syntax_error_shows_its_line() -> None:
    error, shown = failure("x = 1\ndef main(:\n    pass\n")
    assert isinstance(error, SyntaxError)
    assert shown.startswith('  File "prog.py", line 2\n    def main(:')


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("from inferlet import send\nawait send('hi')\n", "such as `async def main():`, which Tartlet runs."),
        ("async with x: pass\n", "such as `async def main():`, which Tartlet runs."),
        ("def main():\n    await receive()\n", "Make the function an asynchronous one: `async def`."),
    ],
)
def test_an_await_in_the_wrong_place_says_where_it_goes(text: str, told: str) -> None:
    error, shown = failure(text)
    assert isinstance(error, SyntaxError)
    assert shown.splitlines()[-1].endswith(told)
    assert text.splitlines()[(error.lineno or 0) - 1].strip() in shown.splitlines()[1]


@pytest.mark.parametrize(
    ("result", "told"),
    [
        ("ctx.generate_until(max_tokens=3)", "Context.generate_until, which was not awaited: write `return await ...`"),
        ("inferlet.tokenize('a')", "Answer, which was not awaited: write `return await ...`"),
        ("ctx.generate(max_tokens=3)", "Generation, which was not iterated by `async for`"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_result_that_was_not_awaited_is_none(result: str, told: str) -> None:
    _, shown = failure(f"""
        import inferlet
        async def main():
            ctx = inferlet.Context()
            ctx.fill("a")
            return {result}
    """)
    assert shown == f"TypeError: main returned {told}"


def test_a_file_that_runs_nothing_says_so() -> None:
    _, shown = failure("import inferlet\n\nasync def mian():\n    inferlet.send('hi')\n")
    assert shown.endswith("prog.py defines functions, none of them is `main`, and nothing was run")
    host = MiniHost()
    run_source(host, "def double(n):\n    return 2 * n\n\nprint(double(4))\n")
    assert host.log == {1: b"8\n", 2: b""}


@pytest.mark.parametrize(("code", "text"), [("3", "exit status 3"), ("'no prompt'", "no prompt")])
def test_a_failing_exit_says_why(code: str, text: str) -> None:
    _, shown = failure(f"import sys\ndef main(): sys.exit({code})")
    assert shown == text


def test_a_wrong_flag_is_argparse_s_own_message() -> None:
    host = MiniHost()
    text = "import argparse\ndef main(): argparse.ArgumentParser().parse_args()"
    with pytest.raises(Exception, match="exit status 2"):
        run_source(host, text, "--nonsense")
    assert b"prog.py: error: unrecognized arguments: --nonsense" in host.log[2]


def test_a_failure_that_nobody_awaited_fails_the_program() -> None:
    error, _ = failure(
        """
        import inferlet
        async def main():
            inferlet.dealloc_emb([inferlet.Embed(3)])
            await inferlet.synchronize(inferlet.create_queue())
        """
    )
    assert isinstance(error, errors.UnknownResource)


def test_a_caught_and_reset_failure_does_not() -> None:
    text = """
        import inferlet
        async def main():
            try:
                await inferlet.get_next_dist(inferlet.Embed(3))
            except inferlet.errors.RequestError as error:
                inferlet.reset()
                return error.number
    """
    assert run_source(MiniHost(), source(text)) == "105"


CAUGHT = {
    "a generation's": """
        ctx = inferlet.Context()
        ctx.fill("a" * 500)
        keep = ctx
        await ctx.generate_until(max_tokens=3)
    """,
    "a synchronize's": """
        queue = inferlet.create_queue()
        queue.dealloc_emb([inferlet.Embed(3)])
        await inferlet.synchronize(queue)
    """,
    "an answer's that came before it was awaited": """
        queue = inferlet.create_queue()
        answer = queue.get_next_dist(inferlet.Embed(3))
        await asyncio.sleep(0.01)
        await answer
    """,
    "several tasks'": """
        await asyncio.gather(*(inferlet.create_queue().get_next_dist(inferlet.Embed(n)) for n in range(3)))
    """,
    "one before a successful exit's": """
        await inferlet.create_queue().get_next_dist(inferlet.Embed(3))
    """,
}


@pytest.mark.parametrize("what", CAUGHT)
def test_a_caught_failure_is_not_the_program_s(what: str) -> None:
    text = f"""
import asyncio, inferlet, sys
keep = None
async def main():
    global keep
    try:
{textwrap.indent(textwrap.dedent(CAUGHT[what]), "        ")}
    except inferlet.errors.TartletError as error:
        {"sys.exit()" if "exit" in what else "pass"}
        return f"sorry: {{type(error).__name__}}"
"""
    host = MiniHost(page_limit=2)
    result = run_source(host, text)
    assert result is None if "exit" in what else result.startswith("sorry: ")
    assert all(lane.cause is None for lane in host.lanes.values()), "control takes a poisoned queue for one unseen"


def test_answers_that_failed_unread_fail_the_program_without_asyncio_s_warnings(
    capfd: pytest.CaptureFixture[str],
) -> None:
    host = MiniHost()
    text = """
        import asyncio, inferlet
        async def main():
            inferlet.get_next_dist(inferlet.Embed(3))
            await asyncio.sleep(0.01)
    """
    with pytest.raises(errors.UnknownResource):
        run_source(host, source(text))
    gc.collect()
    assert (host.log[2], capfd.readouterr().err) == (b"", "")


def test_each_program_draws_its_own_random_numbers() -> None:
    text = "import random\ndef main(): return random.random()"
    random.seed(0)
    first = run_source(MiniHost(), text)
    random.seed(0)
    assert run_source(MiniHost(), text) != first


def test_a_program_told_the_same_says_the_same_byte_for_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """What replay rests on: nothing but deliveries and the host's randomness decides what is submitted."""
    text = """
        import asyncio, random
        from inferlet import Context, Temperature
        async def branch(ctx):
            await ctx.generate_until(max_tokens=random.randrange(3, 9), sampler=Temperature(1.0))
        async def main():
            ctx = Context()
            ctx.fill("prompt")
            forks = ctx.fork(3)
            async with asyncio.TaskGroup() as group:
                for fork in [*forks, ctx]:
                    group.create_task(branch(fork))
            print([len(fork.tokens) for fork in forks])
    """
    monkeypatch.setattr(os, "urandom", lambda n: bytes(range(n)))
    runs = [MiniHost(per_wait=3), MiniHost(per_wait=3)]
    for host in runs:
        run_source(host, source(text))
    assert runs[0].submissions == runs[1].submissions
    assert len(runs[0].submissions) > 5
