"""Keeps the process table: what each thread waited for, and its share of the device time of each step (Autellix 4.2.1).

A thread is one command queue. A step's device time is shared by the tokens that its commands run through the layers; in
a step without such commands all its queues have equal shares.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from tartlet_control.calls.registry import RUNS_LAYERS
from tartlet_control.order import book
from tartlet_control.order.orders import Order, chosen
from tartlet_control.tables.programs import Command, CommandQueue


def ready(queue: CommandQueue, arrived: float) -> None:
    """Note that a queue has an engine command at its head. A queue that computes waits only after that."""
    if queue.dispatched == queue.settled:
        idle_since = queue.thread.idle_since
        book.waits(queue.thread, arrived if idle_since is None else max(arrived, idle_since))


def sent(
    batches: Iterable[list[Command]],
    queues: Iterable[CommandQueue],
    waiting: Container[CommandQueue],
    going: dict[CommandQueue, None],
    order: Order,
    now: float,
) -> None:
    """Note that commands of these queues are in a step from now on. What had starved goes first for a quantum.

    A queue whose light commands alone are in the step, while others compute, waits on: the order didn't choose it.

    Args:
        batches: of the step.
        queues: of the step's commands.
        waiting: the queues that have something to send.
        going: the queues that were in the last step that they could be in; it is kept up to date.
        order: of programs.
        now: in seconds.
    """
    taken: dict[CommandQueue, None] = {}  # in their order: a set would make runs differ
    computing = {command.queue for commands in batches if commands[0].kind in RUNS_LAYERS for command in commands}
    for queue in queues:
        if computing and queue not in computing and queue.pending:
            continue
        thread = queue.thread
        if not thread.active:  # another call begins behind one that ended with commands on the engine
            book.waits(thread, now)
        chosen(order, thread, now)
        book.runs(thread, now)
        taken[queue] = None
    if order.name == "round-robin":  # calls take turns anyway, and each would be ranked twice a step
        return
    for queue in [queue for queue in going if queue in waiting and queue not in taken]:
        del going[queue]
        book.keeps_on(queue.thread, goes_on=False)
    for queue in taken:
        going[queue] = None
        book.keeps_on(queue.thread, goes_on=True)


def tokens_of_tenants(batches: Iterable[list[Command]], queues: list[CommandQueue], tokens: int) -> dict[str, int]:
    """Return how many tokens a step computes for each tenant. In a step without tokens, each command counts as one.

    Args:
        batches: of the step.
        queues: of the step's commands.
        tokens: that the step computes in all.
    """
    tenants = {queue.program.tenant for queue in queues}
    if len(tenants) < 2:
        return dict.fromkeys(tenants, tokens or len(queues))
    counts: dict[str, int] = {}
    for batch in batches:
        if tokens and batch[0].kind not in RUNS_LAYERS:
            continue
        for command in batch:
            tenant = command.queue.program.tenant
            counts[tenant] = counts.get(tenant, 0) + (command.tokens if tokens else 1)
    return counts


def settled(
    batches: list[list[Command]],
    queues: list[CommandQueue],
    waiting: Container[CommandQueue],
    device_s: float,
    now: float,
) -> None:
    """Charge a step's device time to its threads, and note which of them wait again and which are idle."""
    tokens: dict[CommandQueue, int] = {}
    for commands in batches:
        if commands[0].kind in RUNS_LAYERS:
            for command in commands:
                tokens[command.queue] = tokens.get(command.queue, 0) + command.tokens
    total = sum(tokens.values())
    if total:
        token_s = device_s / total
        for queue, of_queue in tokens.items():
            if queue.id >= 0:  # else control makes lost state again
                book.serve(queue.thread, token_s * of_queue, of_queue)
    elif queues:
        share_s = device_s / len(queues)
        for queue in queues:
            book.serve(queue.thread, share_s)
    for queue in queues:
        if queue.settled == queue.dispatched:
            (book.waits if queue in waiting else book.idles)(queue.thread, now)
