"""Cases of the calls that the runtime answers."""

import json
import sys

import given
from computing import fails

import inferlet
from inferlet import errors
from inferlet._generated import packers
from inferlet._wire.channel import channel


async def log() -> None:
    print("a printed line")
    print("another", file=sys.stderr)


async def send() -> None:
    inferlet.send("a message")


async def receive() -> None:
    assert await inferlet.receive() == "hello"


async def get_arg() -> None:
    """The Python SDK is told its arguments at the start; the record is the one that other SDKs send."""
    told = await channel.call(lambda _a, _b, _c, payload: json.loads(payload), *packers.get_arg())
    assert told == given.args


async def available_models() -> None:
    assert await inferlet.available_models() == [(await inferlet.get_model()).name]


async def available_models_with_traits() -> None:
    assert await inferlet.available_models_with_traits(["Forward", "Adapter"]) == await inferlet.available_models()
    assert await inferlet.available_models_with_traits(["Flight"]) == []


async def get_model() -> None:
    model = await inferlet.get_model()
    assert model.vocab_size > 256
    await fails(inferlet.get_model("nobody's"), errors.UnknownModel)


async def model_card() -> None:
    model = await inferlet.get_model()
    assert model.name
    assert model.description
    assert model.version
    assert model.license
    assert {"Allocate", "Forward", "InputText", "Tokenize", "OutputText"} <= set(inferlet.available_traits(model))
    assert 8 <= inferlet.get_kv_page_size() <= 32


async def prompt_template() -> None:
    assert "messages" in await inferlet.prompt_template()


async def format_chat() -> None:
    asked = [{"role": "user", "content": "Hi there"}]
    text = await inferlet.format_chat(asked)
    assert "Hi there" in text
    assert await inferlet.tokenize_chat(asked) == (text, await inferlet.tokenize(text, special=False))


async def tokenize() -> None:
    tokens = await inferlet.tokenize("Hello, world")
    assert len(tokens) > 1
    assert tokens[:1] == await inferlet.tokenize("Hello, world"[:1]) or len(set(tokens)) > 1


async def detokenize() -> None:
    assert await inferlet.detokenize(await inferlet.tokenize("Hello, wörld")) == "Hello, wörld"


async def get_vocabs() -> None:
    vocabs = await inferlet.get_vocabs(first=0, count=40)
    assert len(vocabs) == 40
    token = (await inferlet.tokenize("H"))[0]
    assert (await inferlet.get_vocabs(first=token, count=1)) == [b"H"]


async def get_version() -> None:
    assert inferlet.get_version()[0].isdigit()


async def get_instance_id() -> None:
    inferlet.send(inferlet.get_instance_id())


async def continue_() -> str:
    if await inferlet.store_get(f"{given.tag}runs") is None:
        await inferlet.store_set(f"{given.tag}runs", "1")
        inferlet.continue_as_new(given.args)
    return "the second run"


async def get_all_adapters() -> None:
    (adapter,) = await inferlet.get_all_adapters()
    assert (adapter.name, adapter.rank > 0) == ("polite", True)


async def http_get() -> None:
    reply = await inferlet.http_get(f"{given.url}/here")
    assert reply.status == 200
    assert reply.text().startswith("GET /here")


async def http_post() -> None:
    reply = await inferlet.http_post(f"{given.url}/echo", json={"city": "Paris"})
    assert reply.text().endswith('{"city": "Paris"}')


async def http_read() -> None:
    async with inferlet.http_stream("GET", f"{given.url}/slowly?3") as stream:
        assert [line async for line in stream.lines()] == ["data: 0", "data: 1", "data: 2"]


async def http_close() -> None:
    """As many streams in turn as a program may not have open at once."""
    for _ in range(80):
        stream = await inferlet.http_stream("GET", f"{given.url}/endless").__aenter__()
        stream.close()


async def spawn() -> None:
    child = await inferlet.spawn(args=["echo", given.tag, "", ""])
    assert child.id != inferlet.get_instance_id()
    await child.send("end")
    assert await child.result() == "end"


async def child_send() -> None:
    child = await inferlet.spawn(args=["echo", given.tag, "", ""])
    await child.send("one")
    await child.send("end")
    assert [message async for message in child] == ["one"]


async def child_kill() -> None:
    child = await inferlet.spawn(args=["echo", given.tag, "", ""])
    await child.kill("enough")
    error = await fails(child.result(), errors.ChildFailed)
    assert type(error.__cause__) is errors.ProgramKilled
