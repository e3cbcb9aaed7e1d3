"""The programs in inferlets/std, and the template of `tartlet new`, on the small host."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tests.sdk.host.harness import held, run_source, tokens_of
from tests.sdk.host.mini_host import MiniHost
from tests.sdk.host.mini_model import probabilities, reference_generate, reference_states


def read(repo: Path, name: str) -> str:
    return (repo / "inferlets/std" / name).read_text(encoding="utf-8")


def completed(prompt: str, n: int) -> bytes:
    return bytes(reference_generate(tokens_of(prompt), n))


def test_text_completion_streams_the_completion(repo: Path) -> None:
    host = MiniHost()
    run_source(host, read(repo, "text_completion.py"), "--prompt", "374+588=", "--max-tokens", "9")
    assert host.log[1] == completed("374+588=", 9) + b"\n"
    assert held(host) == (0, 0, 0)


def test_text_completion_stops_before_a_string(repo: Path) -> None:
    host = MiniHost()
    text = completed("a", 30).decode()
    flags = ["--prompt", "a", "--max-tokens", "30", "--stop", text[10:12], "--stop", text[20]]
    run_source(host, read(repo, "text_completion.py"), *flags)
    end = min(text.find(text[10:12]), text.find(text[20]))
    assert host.log[1].decode() == text[:end] + "\n"


def test_text_completion_samples_by_its_flags(repo: Path) -> None:
    def text(*flags: str) -> bytes:
        host = MiniHost()
        run_source(host, read(repo, "text_completion.py"), "--prompt", "a", "--max-tokens", "20", *flags)
        return host.log[1]

    hot = ["--temperature", "1.5", "--top-k", "50", "--top-p", "0.95", "--min-p", "0.01", "--seed"]
    assert text(*hot, "1") == text(*hot, "1") != text(*hot, "2")
    assert text("--top-k", "1") == text()


def test_text_completion_formats_a_chat(repo: Path) -> None:
    host = MiniHost()
    run_source(host, read(repo, "text_completion.py"), "--prompt", "hi", "--max-tokens", "1", "--chat")
    assert host.tokenized == [("<user>hi</user><assistant>", False)]


@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_the_paper_s_loop(repo: Path, page_size: int) -> None:
    host = MiniHost(page_size=page_size)
    run_source(host, read(repo, "autoregressive.py"))
    assert host.log[1] == bytes(reference_generate(b"Hello,", 10)) + b"\n"
    assert held(host) == (0, 0, 0)


@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_the_paper_s_split_forward(repo: Path, page_size: int) -> None:
    assert run_source(MiniHost(page_size=page_size), read(repo, "split_forward.py")) == "same"


def test_forks_print_a_line_each(repo: Path) -> None:
    host = MiniHost(page_size=2)
    flags = ["--prompt", "Once upon", "--branches", "3", "--max-tokens", "6", "--seed", "4"]
    run_source(host, read(repo, "fork.py"), *flags)
    lines = host.log[1].decode().splitlines()
    assert [line[:3] for line in lines] == ["1: ", "2: ", "3: "]
    assert len({line[3:] for line in lines}) == 3
    assert held(host) == (0, 0, 0)


def test_chat_answers_until_the_client_says_bye(repo: Path) -> None:
    host = MiniHost()
    for message in (b"hi", b"more", b"bye"):
        host.deliver(message)
    run_source(host, read(repo, "chat.py"), "Be", "brief.")
    dialogue = [*b"<system>Be brief.</system><user>hi</user><assistant>"]
    first = reference_generate(dialogue, 256)
    dialogue += [*first, *b"</assistant><user>more</user><assistant>"]
    second = reference_generate(dialogue, 256)
    assert b"".join(host.sent) == bytes(first) + b"\n" + bytes(second) + b"\n"
    assert host.computed_tokens < len(dialogue) + 256 + 20, "the second turn computes what is new alone"
    assert held(host) == (0, 0, 0)


def test_the_template_of_a_new_program_runs(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.urandom", lambda n: b"7" * n)  # else two bytes may well be one character
    host = MiniHost()
    template = (repo / "services/tartlet_cli/template.py.txt").read_text(encoding="utf-8")
    program = template.replace("{name}", "mine.py")
    assert "{" not in program
    run_source(host, program, "--max-tokens", "12", filename="mine.py")
    assert len(host.log[1].decode()) == 13


@pytest.mark.parametrize("name", ["prompt_lookup.py", "jacobi.py"])
def test_drafts_give_the_greedy_tokens_in_fewer_passes(repo: Path, name: str) -> None:
    """The text repeats itself, as the script makes it do, so lookups find drafts and blocks settle early."""
    prompt = "abcabcabcabcabc"
    tokens = list(tokens_of(prompt))
    script = {at: ord("abc"[(at - 1) % 3 - 2]) for at in range(len(tokens) - 1, 200)}
    host = MiniHost(script=script)
    run_source(host, read(repo, name), "--prompt", prompt, "--max-tokens", "30")
    text, counts = host.log[1].decode().splitlines()
    assert text.encode() == bytes(reference_generate(tokens, 30, script=script))
    passes = int(counts.split()[3])
    assert counts == f"30 tokens in {passes} passes"
    assert passes <= (8 if name == "prompt_lookup.py" else 24)
    assert held(host) == (0, 0, 0)


@pytest.mark.parametrize("name", ["prompt_lookup.py", "jacobi.py"])
def test_drafts_that_fail_cost_no_token(repo: Path, name: str) -> None:
    host = MiniHost()
    run_source(host, read(repo, name), "--prompt", "a b a b", "--max-tokens", "12")
    assert host.log[1].splitlines()[0] == completed("a b a b", 12)


def test_beam_search_finds_the_best_continuations(repo: Path) -> None:
    """Two tokens wide enough to hold every prefix of the best pair: a search over all pairs agrees."""
    host = MiniHost(page_size=3)
    run_source(host, read(repo, "beam_search.py"), "--prompt", "beam", "--beams", "3", "--max-tokens", "4")
    prompt = list(tokens_of("beam"))
    beams: list[tuple[float, list[int]]] = [(0.0, [])]
    for _ in range(4):
        wider = []
        for score, found in beams:
            states = reference_states(prompt + found)
            probs = probabilities(states[-1], len(states) - 1, {})
            wider += [(score + math.log(probs[token]), [*found, int(token)]) for token in np.argsort(-probs)[:3]]
        beams = sorted(wider, key=lambda beam: -beam[0])[:3]
    expected = [f"{score:.3f} {bytes(found).decode()}" for score, found in beams]
    assert host.log[1].decode().splitlines() == expected


def test_attention_sinks_keep_memory_constant(repo: Path) -> None:
    host = MiniHost(page_size=4, page_limit=1 + 4 + 1 + 4)
    flags = ["--prompt", "sink", "--max-tokens", "100", "--sinks", "2", "--window", "12"]
    run_source(host, read(repo, "attention_sink.py"), *flags)
    *_, counts = host.log[1].decode().splitlines()
    assert counts == "4 pages for 105 tokens"
    assert held(host) == (0, 0, 0)
