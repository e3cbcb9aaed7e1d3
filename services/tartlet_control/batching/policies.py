"""The four batching policies: when a step is sent, and how large (Pie 7, Table 5).

A policy is a pure function `plan(view, now) -> Plan`; `Plan.look_at` says when to ask again if nothing happens.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from tartlet_common.config.settings import ControlSettings
from tartlet_control.batching.gather import Dispatch
from tartlet_control.batching.ordering import first
from tartlet_control.batching.view import Plan, View

Policy = Callable[[View, float], Plan]

NOTHING: Final = Plan([])
LEAD_S: Final = 0.002
"""How long before the running step's end the next one is formed: this covers planning, sending and unpacking."""
LEAD_SHARE: Final = 0.1
"""How much earlier still, as a share of the running step's duration: predictions err, and an idle engine costs more
than a program that comes too late for the step."""
K_PATIENCE_S: Final = 0.05
"""k-only sends fewer than k commands after this long. Otherwise the last programs of a load would wait for ever."""


def adaptive(view: View, now: float) -> Plan:
    """Send what waits when the engine is about to be idle (work-conserving: Pie 6.1).

    The second step in flight keeps the engine from waiting for control. If it were formed at once, it would miss the
    programs that wait for the first step's answers, and load would split into ever smaller groups that never meet: in a
    simulation of 128 programs without run-ahead there were three groups of a third each. So the second step is formed
    just before the first ends, unless no program could still join it. If the programs that will be answered then come
    back sooner than the fixed part of another step takes (`return_times`), the policy waits for them, so that groups
    that have missed each other meet again.
    """
    if view.in_flight >= view.depth:
        return NOTHING
    away = view.away
    expected, until = view.expected
    if view.in_flight and away.queues:
        ends, takes_s = view.running
        due = ends - LEAD_S - LEAD_SHARE * takes_s
        if now < due:
            return Plan([], look_at=due)
        # A larger group takes longer to return. Programs that run ahead are in each step anyway: they gain nothing.
        together_s = away.soon_s * (1 + (len(view.queues) + away.ahead) / max(1, away.soon))
        if together_s <= away.worth_s and _has_room(view, away.soon):
            return NOTHING  # asked again when it ends
    elif not view.in_flight and now < until and _has_room(view, expected):
        return Plan([], look_at=until)
    return Plan(view.gather(now))


def _has_room(view: View, more: int) -> bool:
    """Return whether one batch takes `more` queues beside those that wait, and no waiting queue has a priority."""
    return 0 < more <= view.limits.batch_commands - len(view.queues) and not view.queues.prioritised


def eager(view: View, now: float) -> Plan:
    """Send every command on its own, in the order of programs, as a system without batching does."""
    if view.in_flight >= view.depth:
        return NOTHING
    if not view.queues:
        return NOTHING
    command = first(view.queues.ranked(view.order, now), now, view.limits.starved_s, view.shares)
    return Plan([Dispatch(command.kind, [command])])


def k_only(k: int, view: View, now: float) -> Plan:
    """Wait until `k` queues have a command ready."""
    if view.in_flight >= view.depth:
        return NOTHING
    heads = [queue.pending[0].arrived for queue in view.queues]
    if not heads:
        return NOTHING
    due = min(heads) + K_PATIENCE_S
    if len(heads) < k and now < due:
        return Plan([], look_at=due)
    return Plan(view.gather(now))


def t_only(t_s: float, view: View, now: float) -> Plan:
    """Wait until the oldest command has waited `t_s` seconds."""
    if view.in_flight >= view.depth:
        return NOTHING
    heads = [queue.pending[0].arrived for queue in view.queues]
    if not heads:
        return NOTHING
    due = min(heads) + t_s
    if now < due:
        return Plan([], look_at=due)
    return Plan(view.gather(now))


def policy_of(settings: ControlSettings) -> Policy:
    """Return the policy that the settings name."""
    table: dict[str, Policy] = {
        "adaptive": adaptive,
        "eager": eager,
        "k-only": partial(k_only, settings.batching_k),
        "t-only": partial(t_only, settings.batching_t_s),
    }
    return table[settings.batching]
