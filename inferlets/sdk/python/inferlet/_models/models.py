"""Which models the host serves, and what a program must know of one.

The runtime answers these calls, without control or an engine; an answer takes some tens of microseconds.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from inferlet._generated import abi, packers
from inferlet._values import arguments, refusals
from inferlet._values.types import Adapter, Model
from inferlet._wire import answers
from inferlet._wire.channel import channel
from inferlet.errors import InvalidArgument, UnknownAdapter


class _Known:
    """The models that the program has asked for."""

    __slots__ = ("by_name", "default")

    def __init__(self) -> None:
        self.default: Model | None = None
        self.by_name: dict[str, Model] = {}


known = _Known()


def reset() -> None:
    """Forget all models, for another program in this process."""
    known.__init__()  # type: ignore[misc]


def available_models() -> asyncio.Future[list[str]]:
    """Ask for the names of the models that the host serves.

    Example:
        >>> async def main():
        ...     print(await available_models())
        ['mini']
    """
    return channel.call(answers.json_value, *packers.available_models(b""))


def available_models_with_traits(traits: Sequence[str]) -> asyncio.Future[list[str]]:
    """Ask for the names of the models that offer all of these groups of calls ("traits"; paper, section 4).

    Args:
        traits: names of traits, as `available_traits` returns them. A name that no engine has matches no model.

    Raises:
        InvalidArgument: `traits` is no list of texts.

    Example:
        >>> async def main():
        ...     print(await available_models_with_traits(["Forward", "Tokenize"]))
        ...     print(await available_models_with_traits(["InputImage"]))
        ['mini']
        []
    """
    if isinstance(traits, str) or not all(isinstance(trait, str) for trait in traits):
        told = f"it takes a list of texts, not {arguments.shown(traits)}"
        raise refusals.refusal("available_models_with_traits", "traits", told)
    payload = json.dumps(list(traits)).encode()
    return channel.call(answers.json_value, *packers.available_models(payload))


def prompt_template(model: Model | None = None) -> asyncio.Future[str]:
    """Ask for the Jinja source of the model's chat template; "" if the model has none (paper, section 4).

    `format_chat` renders the template.

    Raises:
        InvalidArgument: `model` is no `Model`.

    Example:
        >>> async def main():
        ...     print(type(await prompt_template()).__name__)
        str
    """
    return channel.call(answers.text, *packers.prompt_template(chosen("prompt_template", model).index))


def get_all_adapters(model: Model | None = None) -> asyncio.Future[list[Adapter]]:
    """Ask for the LoRA adapters that the engines of a model offer now (paper, Table 1). The list may be empty.

    `Context(adapter=...)` and `forward_with_adapter` take one of them.

    Raises:
        InvalidArgument: `model` is no `Model`.

    Example:
        >>> async def main():
        ...     (adapter,) = await get_all_adapters()
        ...     print(adapter.name)
        loud
    """
    return channel.call(_decode_adapters, *packers.get_all_adapters(chosen("get_all_adapters", model).index))


def adapter_of(model: Model, adapter: Adapter | str | None) -> Adapter | None:
    """Return an adapter that was given by its name, by itself or not at all.

    The host is asked each time for a name, because adapters come and go.

    Raises:
        InvalidArgument: it is none of these.
        UnknownAdapter: the model has none of the name.
    """
    if adapter is None or isinstance(adapter, Adapter):
        return adapter
    if not isinstance(adapter, str):
        raise InvalidArgument(argument="adapter", detail=f"it is a name or an Adapter, not {arguments.shown(adapter)}")
    have: list[Adapter] = channel.result(get_all_adapters(model))
    found = next((each for each in have if each.name == adapter), None)
    if found is None:
        raise UnknownAdapter(model=model.name, adapter=adapter, available=[each.name for each in have])
    return found


def get_model(name: str = "") -> asyncio.Future[Model]:
    """Ask for the model of a name, or for the program's default model.

    Example:
        >>> async def main():
        ...     model = await get_model()
        ...     print(model.page_size > 0)
        True
    """
    arguments.text("get_model", name)
    return channel.call(_decode_model, *packers.get_model(name.encode()))


def default_model() -> Model:
    """Return the program's default model. The host is asked once."""
    if known.default is None:
        known.default = channel.result(get_model())
    return known.default


def chosen(call: str, model: Any) -> Model:
    """Return the model that a call was given, or the program's default model.

    Raises:
        InvalidArgument: `model` is no `Model`.
    """
    if model is None:
        return default_model()
    if not isinstance(model, Model):
        name = repr(model) if isinstance(model, str) else "name"
        told = f"it takes a model, not {arguments.shown(model)}: `await get_model({name})` gives one"
        raise refusals.refusal(call, "model", told)
    return model


def available_traits(model: Model | None = None) -> list[str]:
    """Return the names of the groups of calls ("traits") that the model offers.

    Example:
        >>> async def main():
        ...     print("Forward" in available_traits())
        True
    """
    return list(chosen("available_traits", model).traits)


def get_kv_page_size(model: Model | None = None) -> int:
    """Return how many tokens one `KvPage` holds.

    Example:
        >>> async def main():
        ...     size = get_kv_page_size()
        ...     print(len(alloc_kvpage(-(-100 // size))))  # enough for 100 tokens
        7
    """
    return chosen("get_kv_page_size", model).page_size


def _decode_adapters(_a: int, _b: int, _c: int, payload: bytes) -> list[Adapter]:
    return [Adapter(each["number"], each["name"], each["rank"], each["digest"]) for each in json.loads(payload)]


def _decode_model(_a: int, _b: int, _c: int, payload: bytes) -> Model:
    info = json.loads(payload)
    before = known.by_name.get(info["name"])
    if before is not None and before.index == info["index"]:
        return before
    model = Model(
        index=info["index"],
        name=info["name"],
        page_size=info["page_size"],
        vocab_size=info["vocab_size"],
        max_position=info["max_position"],
        stop_tokens=tuple(info.get("stop_tokens", ())),
        bos_token=info.get("bos_token"),
        top_k_limit=info.get("top_k_limit", abi.DEFAULT_TOP_K),
        max_batch_tokens=info["max_batch_tokens"],
        traits=tuple(info.get("traits", ())),
        logprobs_limit=info.get("logprobs_limit", abi.MAX_LOGPROBS),
        description=info.get("description", ""),
        version=info.get("version", ""),
        license=info.get("license", ""),
    )
    known.by_name[model.name] = model
    return model
