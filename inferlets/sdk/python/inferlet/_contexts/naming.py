"""Saving a context under a name, for other programs to load (the `export_kvpage` of the paper)."""

from __future__ import annotations

from inferlet._contexts.stepping import Stepping, alone
from inferlet._values.types import Exported


class Naming(Stepping):
    """The call on a context that names it."""

    @alone
    async def save(self: Stepping, /, name: str, *, ttl_s: int = 0) -> Exported:
        """Name the context's tokens, for all programs of the tenant that use the same model.

        What isn't computed yet is computed first. The context goes on as before; later tokens don't change the name.

        Args:
            name: 1 to 256 bytes of UTF-8, without control characters.
            ttl_s: seconds without use after which the name ends; 0 for the time of the deployment.

        Raises:
            InvalidArgument: `name` is none, the context is closed or empty, or another task generates from it.
            NotPlain: tokens of the context are hidden or dropped.
            NameBudgetExceeded: the tenant's names hold as many tokens as they may.

        Example:
            >>> async def main():
            ...     async with Context() as docs:
            ...         docs.fill("The documents that many questions are about. ")
            ...         await docs.save("documents")
            ...     async with await Context.load("documents") as ctx:  # in this program or another
            ...         ctx.fill("What are they about?")
            ...         print(len(await ctx.generate_until(max_tokens=8)) > 0)
            True
        """
        await self._ready()
        return await self._cache.export(self.tokens, name, ttl_s)
