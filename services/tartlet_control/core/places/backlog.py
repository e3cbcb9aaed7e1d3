"""How much device time the work of an engine will take, also the work that waits for the engine's memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tartlet_control.batching.batcher import Batcher, layer_tokens
from tartlet_control.tables.engines import EngineState
from tartlet_control.tables.programs import CommandQueue, Place


def waiting_s(
    engine: EngineState, batcher: Batcher, stalled: Mapping[CommandQueue, EngineState], suspended: Iterable[Place]
) -> float:
    """Predict the device time of all work that waits for an engine, in seconds. Any thread may ask.

    Args:
        engine: whose work.
        batcher: of the engine.
        stalled: the queues that wait for room, with the engine that lacks the room.
        suspended: programs off their engines that come back when there is room. What their state needs to be made
            again counts too. Engines of one model share those that may go to any of them.
    """
    tokens = 0.0
    for queue, lacking in list(stalled.items()):  # copies: the core's thread may change what is walked over
        if lacking is engine:
            tokens += layer_tokens(list(queue.pending))
    for place in list(suspended):
        ours, kept_on, recovery = place.model.engines, place.kept_on, place.recovery
        if kept_on is engine or (kept_on is None and engine in ours):
            queues = [queue for queue in list(place.program.queues.values()) if queue.place is place]
            own = sum(layer_tokens(list(queue.pending)) for queue in queues)
            if kept_on is None and recovery is not None:
                own += recovery.need[0] * engine.spec.page_size
            tokens += own if kept_on is engine else own / max(1, len(ours))
    return batcher.waiting_s + (batcher.work_s(round(tokens)) if tokens else 0.0)
