"""A dialogue in one context is what the template makes of the whole of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferlet import Context, Message, Tool, errors
from inferlet import format_chat as format_chat_call
from tartlet_runtime.answers.chat import format_chat
from tests.sdk.host.harness import run
from tests.sdk.host.mini_host import MiniHost
from tests.sdk.host.mini_model import EOS
from tests.sdk.host.mini_text import encode

DEMO = Path(__file__).resolve().parents[3] / "models/demo/tokenizer_config.json"
TEMPLATES = {
    "the demo model's": json.loads(DEMO.read_text(encoding="utf-8"))["chat_template"],
    "a system prompt of its own, a line behind the end": (
        "{% if messages[0]['role'] != 'system' %}<system>Help.</s>\n{% endif %}"
        "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{{ eos_token }}\n{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    ),
    "turns that alternate, a space before the end": (
        "{{ bos_token }}{% for m in messages %}"
        "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}"
        "{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]"
        "{% else %} {{ m['content'] }}{{ ' ' + eos_token }}{% endif %}{% endfor %}"
    ),
    "thoughts in the last answer alone": (
        "{{ bos_token }}{% for m in messages %}<{{ m['role'] }}>"
        "{% if loop.last and m['role'] == 'assistant' %}(none){% endif %}{{ m['content'] }}{{ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    ),
}
LOOKUP: Tool = {"type": "function", "function": {"name": "lookup", "parameters": {"type": "object"}}}
WITH_TOOLS = (
    "{{ bos_token }}{% for t in tools or [] %}({{ t.function.name }}){% endfor %}"
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
USER: list[Message] = [{"role": "user", "content": "one"}]
ANSWER: Message = {"role": "assistant", "content": "ok"}


def rendered(template: str, messages: list[Message], *, prompt: bool = True, tools: list[Tool] | None = None) -> str:
    request = json.dumps({"messages": messages, "add_generation_prompt": prompt, "tools": tools}).encode()
    return format_chat(template, request, bos_token="<s>", eos_token="</s>")


def text_of(host: MiniHost, tokens: list[int]) -> str:
    return b"".join(host.vocab()[token] for token in tokens).decode()


@pytest.mark.parametrize("ended", ["stop token", "length", "fill"])
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_second_turn_continues_the_first(template: str, ended: str) -> None:
    host = MiniHost(template=TEMPLATES[template])
    begun = len(encode(rendered(host.template, USER), host.template))
    space = " " * rendered(host.template, [*USER, ANSWER], prompt=False).endswith("ok </s>")
    said = [*(space + "ok" + space).encode(), EOS] if ended == "stop token" else [*(space + "ok").encode()]
    host.script = {begun - 1 + i: token for i, token in enumerate(said)}

    async def main() -> tuple[list[int], list[int]]:
        ctx = Context()
        ctx.chat("one")
        if ended == "fill":
            ctx.fill(space + "ok")
        else:
            await ctx.generate_until(max_tokens=len(said))
        [fork] = ctx.fork()
        for context in (ctx, fork):
            context.chat("two")
            await context.flush()
        return ctx.tokens, fork.tokens

    tokens, forked = run(host, main)
    assert tokens == forked
    want = rendered(host.template, [*USER, ANSWER, {"role": "user", "content": "two"}])
    assert text_of(host, tokens) == want.replace("(none)", "")


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_chat_behind_other_text_has_no_beginning_of_its_own(template: str) -> None:
    host = MiniHost(template=TEMPLATES[template])

    async def main() -> list[int]:
        ctx = Context()
        ctx.fill("Be brief.")
        ctx.chat("one")
        await ctx.flush()
        return ctx.tokens

    want = rendered(host.template, USER).removeprefix("<s>").removeprefix("<system>Help.</s>\n")
    assert text_of(host, run(host, main)) == "<s>Be brief." + want


def test_messages_without_anything_between_are_one_chat() -> None:
    host = MiniHost(template=TEMPLATES["a system prompt of its own, a line behind the end"])
    system: Message = {"role": "system", "content": "Be brief."}

    async def main() -> list[int]:
        ctx = Context()
        ctx.chat([system])
        ctx.chat("one")
        await ctx.flush()
        return ctx.tokens

    assert text_of(host, run(host, main)) == rendered(host.template, [system, *USER])


def test_a_turn_that_the_template_refuses_behind_an_answer_loses_its_bos_alone() -> None:
    template = (
        "{% if messages|length > 2 %}{{ raise_exception('too long') }}{% endif %}"
        "{{ bos_token }}{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    )
    host = MiniHost(template=template)

    async def main() -> list[int]:
        ctx = Context()
        ctx.chat("one")
        ctx.fill("ok")
        ctx.chat("two")
        await ctx.flush()
        return ctx.tokens

    assert text_of(host, run(host, main)) == "<s><user>oneok<user>two"


def test_what_the_template_refuses_altogether_is_told_where_it_is_computed() -> None:
    host = MiniHost(template="{{ raise_exception('never') }}")

    async def main() -> None:
        ctx = Context()
        ctx.fill("text")
        ctx.chat("one")
        for _ in range(2):
            with pytest.raises(errors.InvalidArgument, match="never"):
                await ctx.generate_until(max_tokens=1)

    run(host, main)


def test_tools_stand_at_the_beginning_of_a_dialogue_and_only_there() -> None:
    host = MiniHost(template=WITH_TOOLS)
    begun = len(encode(rendered(WITH_TOOLS, USER, tools=[LOOKUP]), WITH_TOOLS))
    host.script = {begun - 1: ord("o"), begun: ord("k"), begun + 1: EOS}
    result: Message = {"role": "tool", "content": "27"}

    async def main() -> tuple[list[int], list[int], str]:
        ctx = Context()
        ctx.chat(USER, tools=[LOOKUP])
        await ctx.generate_until(max_tokens=3)
        with pytest.raises(errors.InvalidArgument, match="give them to the `chat` that a context begins with"):
            ctx.chat([result], tools=[LOOKUP])
        [fork] = ctx.fork()
        for context in (ctx, fork):
            context.chat([result])
            await context.flush()
        return ctx.tokens, fork.tokens, await format_chat_call(USER, tools=[LOOKUP])

    tokens, forked, alone = run(host, main)
    assert tokens == forked
    assert text_of(host, tokens) == rendered(WITH_TOOLS, [*USER, ANSWER, result], tools=[LOOKUP])
    assert alone == rendered(WITH_TOOLS, USER, tools=[LOOKUP])


def test_tools_of_messages_that_follow_each_other_are_those_of_the_chat() -> None:
    host = MiniHost(template=WITH_TOOLS)

    async def main() -> list[int]:
        ctx = Context()
        ctx.chat([{"role": "system", "content": "be brief"}], tools=[LOOKUP])
        ctx.chat("one")
        await ctx.flush()
        return ctx.tokens

    messages: list[Message] = [{"role": "system", "content": "be brief"}, *USER]
    assert text_of(host, run(host, main)) == rendered(WITH_TOOLS, messages, tools=[LOOKUP])


def test_messages_that_are_no_json_leave_those_before_them() -> None:
    host = MiniHost(template=WITH_TOOLS)

    async def main() -> list[int]:
        ctx = Context()
        ctx.chat(USER, tools=[LOOKUP])
        with pytest.raises(TypeError, match="not JSON serializable"):
            ctx.chat([{"role": "user", "content": len}], add_generation_prompt=False)
        await ctx.flush()
        return ctx.tokens

    assert text_of(host, run(host, main)) == rendered(WITH_TOOLS, USER, tools=[LOOKUP])


def test_tools_that_are_no_descriptions_are_refused() -> None:
    async def main() -> None:
        for wrong in (len, "lookup", [len], {"name": "lookup"}):
            with pytest.raises(TypeError, match="takes tools as a list of their descriptions"):
                Context().chat("one", tools=wrong)  # type: ignore[arg-type]

    run(MiniHost(), main)
