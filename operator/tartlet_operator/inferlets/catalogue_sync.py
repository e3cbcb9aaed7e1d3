"""Compares control's catalogue with the Inferlets."""

from __future__ import annotations

from tartlet_operator.api.meta import Key
from tartlet_operator.control.catalogue import sync
from tartlet_operator.machinery.context import Context


async def compare_catalogue(ctx: Context) -> None:
    """List control's catalogue, and queue the Inferlets whose entries are missing, stale or left over.

    Raises:
        TartletError: control didn't answer.
    """
    for namespace in ctx.namespaces:
        held = await ctx.control.fingerprints(namespace)
        first = namespace not in ctx.view.catalogue
        ctx.view.catalogue[namespace] = held
        inferlets = [key for key in ctx.store.inferlets if key.namespace == namespace]
        wanted = {key.name: print_ for key in inferlets if (print_ := ctx.store.inferlets[key].fingerprint)}
        todo = sync(wanted, held)
        for name in todo.put:
            ctx.queue.add(Key("Inferlet", namespace, name))
        for key in inferlets:  # in neither: control may have lost its last valid version
            if first or (key.name not in wanted and key.name not in held):
                ctx.queue.add(key)
        if not first:  # else Inferlets may not have been seen yet; the sweep sees to left-over entries
            for name in todo.delete:  # if the Inferlet is gone, its entry is removed
                ctx.queue.add(Key("Inferlet", namespace, name))


async def queue_entries_without_inferlet(ctx: Context) -> None:
    """Queue the entries that no Inferlet seen so far stands for: their Inferlets were deleted while nobody looked."""
    for namespace, held in ctx.view.catalogue.items():
        for name in held.keys() - {key.name for key in ctx.store.inferlets if key.namespace == namespace}:
            ctx.queue.add(Key("Inferlet", namespace, name))
