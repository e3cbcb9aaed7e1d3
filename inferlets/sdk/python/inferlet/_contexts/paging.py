"""Turning a context into KV pages that a program addresses itself."""

from __future__ import annotations

from inferlet._contexts.naming import Naming
from inferlet._contexts.stepping import Stepping, alone
from inferlet._values.types import KvPage


class Paging(Naming):
    """The call on a context that gives its pages."""

    @alone
    async def pages(self: Stepping, /) -> list[KvPage]:
        """Copy the context's keys and values into new pages, for `forward` and the other calls on pages.

        Slot i % page_size of page i // page_size holds token i, at position i, of all tokens but the last. There is
        room for the last token, which is computed with the next `forward`, as its output is wanted then. Slots of
        tokens that are hidden or dropped stay empty. The context goes on as before. The program frees the pages with
        `dealloc_kvpage`, in any queue.

        Control can't make these pages again if their engine is lost, as all pages that a program addresses itself: the
        program then ends in `WorkerLost`.

        Raises:
            InvalidArgument: the context is closed or empty, or another task generates from it.
            ContextTooLong: the context has more tokens than the model has positions.
            PageQuotaExceeded, ProgramTooLarge: the program would hold more pages than it may.

        Example:
            >>> async def main():
            ...     async with Context() as ctx:
            ...         ctx.fill("Hello,")
            ...         pages, last = await ctx.pages(), len(ctx) - 1
            ...         (embed,) = alloc_emb(1)
            ...         embed_txt(ctx.tokens[-1], last, embed)
            ...         forward(pages, embed, pages, embed, okv_offset=last)
            ...         print((await get_next_dist(embed)).max_index() == (await ctx.next_dist()).max_index())
            True
        """
        await self._begin()
        count, size = len(self.tokens) - 1, self.model.page_size
        self._cache.compute(self.tokens, count)
        made = self.queue.alloc_kvpage(count // size + 1)
        self._cache.copy_out(count, made)
        try:
            await self.queue.synchronize()
        except BaseException:
            self.queue.dealloc_kvpage(made)
            raise
        return made
