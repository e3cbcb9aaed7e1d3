"""The SDK that inferlets import: forward passes, sampling and KV pages by name.

A program is a file with `async def main()` or `def main()`. Either may take one parameter: the list of arguments.
Most programs need only `Context`. The calls with the paper's names (`forward`, `embed_txt`, `sample`, ...) give full
control. The event loop is `asyncio`: tasks, task groups, timeouts and queues are those of the standard library.

The examples assume `import asyncio` and `from inferlet import ...`. A small test model made their output.

Belongs here: what programs import by name. Never here: private helpers, which stand in the packages whose names begin
with an underscore and may change in every release.

Example:
    >>> async def main():
    ...     async with Context(await get_model()) as ctx:
    ...         ctx.fill("374+588=")
    ...         async for piece in ctx.generate(max_tokens=3):
    ...             print(f"one more token, {len(piece)} more characters")
    one more token, 1 more characters
    one more token, 1 more characters
    one more token, 1 more characters
"""

from __future__ import annotations

from inferlet import errors
from inferlet._calls import on_queue
from inferlet._calls.children import Child, spawn
from inferlet._calls.on_queue import *  # noqa: F403 - what a call's function is called stands there alone
from inferlet._calls.program import (
    continue_as_new,
    create_queue,
    expect,
    get_arg,
    get_instance_id,
    get_version,
    receive,
    receive_bytes,
    send,
    usage,
)
from inferlet._calls.sharing import (
    Subscription,
    broadcast,
    store_delete,
    store_exists,
    store_get,
    store_get_bytes,
    store_list_keys,
    store_set,
    subscribe,
)
from inferlet._calls.web import HttpStream, http_get, http_post, http_request, http_stream
from inferlet._contexts.generation import Generation
from inferlet._contexts.pieces import Piece
from inferlet._contexts.proposal import Proposal
from inferlet._models.models import (
    available_models,
    available_models_with_traits,
    available_traits,
    get_all_adapters,
    get_kv_page_size,
    get_model,
    prompt_template,
)
from inferlet._models.text import detokenize_bytes, format_chat, get_vocabs, tokenize_chat
from inferlet._queues.queue import Queue
from inferlet._values.http_reply import HttpHeaders, HttpReply
from inferlet._values.types import (
    Adapter,
    ChatPrompt,
    CompiledGrammar,
    Dist,
    Embed,
    Exported,
    Imported,
    KvPage,
    Message,
    Model,
    PageTable,
    Priority,
    Sampled,
    TokenSlot,
    Tool,
    Usage,
)
from inferlet.context import Context
from inferlet.grammar import Grammar, ebnf, json_schema, lark, regex
from inferlet.sampling import End, Greedy, MinP, Sampler, Temperature, TopK, TopP
from inferlet.stopping import Length, Stop, StopTokens, Until

__all__ = [
    "Adapter",
    "ChatPrompt",
    "Child",
    "CompiledGrammar",
    "Context",
    "Dist",
    "Embed",
    "End",
    "Exported",
    "Generation",
    "Grammar",
    "Greedy",
    "HttpHeaders",
    "HttpReply",
    "HttpStream",
    "Imported",
    "KvPage",
    "Length",
    "Message",
    "MinP",
    "Model",
    "PageTable",
    "Piece",
    "Priority",
    "Proposal",
    "Queue",
    "Sampled",
    "Sampler",
    "Stop",
    "StopTokens",
    "Subscription",
    "Temperature",
    "TokenSlot",
    "Tool",
    "TopK",
    "TopP",
    "Until",
    "Usage",
    "available_models",
    "available_models_with_traits",
    "available_traits",
    "broadcast",
    "continue_as_new",
    "create_queue",
    "detokenize_bytes",
    "ebnf",
    "errors",
    "expect",
    "format_chat",
    "get_all_adapters",
    "get_arg",
    "get_instance_id",
    "get_kv_page_size",
    "get_model",
    "get_version",
    "get_vocabs",
    "http_get",
    "http_post",
    "http_request",
    "http_stream",
    "json_schema",
    "lark",
    "prompt_template",
    "receive",
    "receive_bytes",
    "regex",
    "send",
    "spawn",
    "store_delete",
    "store_exists",
    "store_get",
    "store_get_bytes",
    "store_list_keys",
    "store_set",
    "subscribe",
    "tokenize_chat",
    "usage",
]
__all__ += on_queue.__all__
