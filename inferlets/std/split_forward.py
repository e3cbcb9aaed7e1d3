"""Compute nine tokens in the two ways of the paper's section 4.2: one `forward`, or two that pass a KV page on.

The two `forward`s may share a batch although they share a queue (vertical batching, section 5.2).
"""

from __future__ import annotations

from inferlet import alloc_emb, alloc_kvpage, embed_txt, forward, get_kv_page_size, get_next_dist


async def main() -> str:
    """Return "same" if both ways give the same next token, else "different"."""
    iemb = alloc_emb(9)  # 9 input tokens
    oemb = alloc_emb(1)  # 1 output token
    embed_txt(list(range(9)), range(9), iemb)

    forward([], iemb, [], oemb)
    whole = await get_next_dist(oemb)

    kv = alloc_kvpage(-(-8 // get_kv_page_size()))  # room for 8 tokens
    forward([], iemb[:-1], kv)  # generates the pages
    forward(kv, iemb[-1:], oemb=oemb)  # uses them
    split = await get_next_dist(oemb)

    return "same" if whole.max_index() == split.max_index() else "different"
