"""Hints for names of other Pie SDKs, for authors who bring a program from there.

`docs/coming-from-pie.md` has the whole table.
"""

from __future__ import annotations

import re

_IMPORTED = re.compile(r"cannot import name '(\w+)' from '(?:inferlet|pie)\b|No module named '(pie(?:_\w+)?)'")
_OF_A_CONTEXT = re.compile(r"'Context' object has no attribute '(\w+)'")
_OF_THE_PACKAGE = re.compile(r"module 'inferlet' has no attribute '(\w+)'")

_NAMES = {
    "pie": "`from inferlet import ...`",
    "get_auto_model": "`await get_model()`",
    "get_all_models": "`await available_models()`",
    "get_arguments": "`argparse`, or `get_arg()` for the list of texts",
    "set_return": "`return` in `main`",
    "alloc_embed": "`alloc_emb(n)`",
    "dealloc_embed": "`dealloc_emb(embeds)`",
    "alloc_kv_page": "`alloc_kvpage(n)`",
    "dealloc_kv_page": "`dealloc_kvpage(pages)`",
    "embed_text": "`embed_txt(tokens, positions, embeds)`",
    "forward_with_mask": "`forward(..., mask=...)`",
    "mask_kv_page": "`mask_kvpage(page, bits)`",
    "copy_kv_page": "`copy_kvpage(source, destination, ...)`",
    "get_next_dist_list": "`get_next_dists(embeds)`",
    "ForwardPass": "`Context`, or the calls `embed_txt`, `forward` and `sample`",
    "Matcher": "`Context.generate(grammar=...)` with `json_schema`, `regex`, `lark` or `ebnf`",
    "Decoder": "`Context.generate`, whose pieces are text",
    "Event": "`async for piece in ctx.generate(...)`",
    "EventStream": "`async for piece in ctx.generate(...)`",
    "TokenStream": "`async for piece in ctx.generate(...)`",
    "Tokenizer": "`await tokenize(text)` and `await detokenize(tokens)`",
    "StopCondition": "`Until`, `Length` and `StopTokens`",
    "greedy": "`Greedy()`",
    "top_k": "`TopK(k)`",
    "top_p": "`TopP(p)`",
    "min_p": "`MinP(p)`",
    "typical": "a function from a `Dist` to a token",
    "Drafter": "`Context.propose` and `Context.accept`",
    "session": "`send(text)` and `await receive()`",
    "runtime": "`get_version()`, `get_instance_id()` and `await available_models()`",
    "messaging": "`await broadcast(topic, message)` and `subscribe(topic)`",
}
_METHODS = {
    "system": '`ctx.chat([{"role": "system", "content": text}, ...])`',
    "user": "`ctx.chat(text)`",
    "assistant": '`ctx.chat([{"role": "assistant", "content": text}, ...])`',
    "fill_system": '`ctx.chat([{"role": "system", "content": text}, ...])`',
    "fill_user": "`ctx.chat(text)`",
    "fill_assistant": '`ctx.chat([{"role": "assistant", "content": text}, ...])`',
    "fill_token": "`ctx.fill_tokens([token])`",
    "generate_text": "`await ctx.generate_until(...)`",
    "generate_with_beam": "`beam_search.py` of the example programs, which forks contexts",
    "generate_with_drafter": "`ctx.propose` and `ctx.accept`; `prompt_lookup.py` is an example",
    "decode_step": "`await ctx.step(sampler)`",
    "decode_step_dist": "`await ctx.next_dist()`",
    "mask_token": "`ctx.mask(range(i, i + 1))`",
    "mask_tokens": "`ctx.mask(range(a, b))`",
    "mask_token_range": "`ctx.mask(range(a, b))`",
    "drop_masked_kv_pages": "`ctx.drop(range(a, b))`",
    "grow_kv_pages": "nothing: a context grows by itself",
    "shrink_kv_pages": "`ctx.rollback(n)`",
    "adjust_kv_pages": "nothing: a context grows by itself, and `ctx.rollback(n)` shortens it",
    "get_token_ids": "`ctx.tokens`",
    "get_text": "`await detokenize(ctx.tokens)`",
}


def hint(told: str) -> str:
    """Say what a name of another Pie SDK is called here; "" if `told` tells of no such name.

    Args:
        told: the text of an ImportError or AttributeError.

    Example:
        >>> hint("cannot import name 'get_auto_model' from 'inferlet' (inferlet/__init__.py)")
        'Coming from Pie: instead of `get_auto_model`, write `await get_model()`.'
        >>> hint("'Context' object has no attribute 'user'")
        'Coming from Pie: instead of `user`, write `ctx.chat(text)`.'
        >>> hint("cannot import name 'top_p' from 'inferlet' (inferlet/__init__.py)")
        'Coming from Pie: instead of `top_p`, write `TopP(p)`.'
        >>> hint("'Context' object has no attribute 'colour'")
        ''
    """
    if found := _IMPORTED.search(told) or _OF_THE_PACKAGE.search(told):
        names, name = _NAMES, next(group for group in found.groups() if group)
    elif found := _OF_A_CONTEXT.search(told):
        names, name = _METHODS, found[1]
    else:
        return ""
    return f"Coming from Pie: instead of `{name}`, write {names[name]}." if name in names else ""
