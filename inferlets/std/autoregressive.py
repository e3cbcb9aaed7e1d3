"""The autoregressive loop of the paper's section 4.2, call by call: greedy, ten tokens after "Hello,".

Differences from the paper: an `await` at each call with an answer, and any page size. (The paper's listing
has one token in each page.)
"""

from __future__ import annotations

from inferlet import (
    alloc_emb,
    alloc_kvpage,
    dealloc_emb,
    dealloc_kvpage,
    detokenize,
    embed_txt,
    forward,
    get_kv_page_size,
    get_next_dist,
    tokenize,
)


async def main(args: list[str]) -> None:
    """Print ten tokens after the prompt."""
    prom = await tokenize(args[0] if args else "Hello,")
    tok_limit = len(prom) + 10
    size = get_kv_page_size()

    # Resource allocation
    prom_emb = alloc_emb(len(prom))
    gen_emb = alloc_emb(1)
    kv = alloc_kvpage(-(-tok_limit // size))

    # Prefill
    pos = list(range(len(prom)))
    embed_txt(prom, pos, prom_emb)
    forward([], prom_emb, kv, gen_emb)

    # Decode
    for i in range(len(prom), tok_limit):
        dist = await get_next_dist(gen_emb)
        gen = dist.max_index()
        print(await detokenize(gen), end="", flush=True)
        embed_txt(gen, [i], gen_emb)
        forward(kv, gen_emb, kv[i // size :], gen_emb, okv_offset=i % size)
    print()

    # Cleanup
    dealloc_emb(prom_emb)
    dealloc_emb(gen_emb)
    dealloc_kvpage(kv)
