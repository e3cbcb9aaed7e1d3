"""Dashboards about engines: their steps, and the pages of their KV caches."""

from __future__ import annotations

from typing import Final

from tools.dashboards.board import Board, Panel, Query, quantile, rate

_STEP: Final = "tartlet_step_duration_seconds"
_COMMANDS: Final = "tartlet_step_commands"
_ENGINE: Final = "tartlet_engine_id"

ENGINES: Final = Board(
    "tartlet-engines",
    "Tartlet / Engines",
    (
        Panel(
            "Engines",
            "Engines that are known to control.",
            "short",
            (Query("count(tartlet_pages_free{$where})"),),
            stat=True,
        ),
        Panel(
            "Steps a second",
            "Steps of all engines.",
            "short",
            (Query(f"sum(rate({_STEP}_count{{$where}}[$__rate_interval]))"),),
            stat=True,
        ),
        Panel(
            "Commands a step",
            "Commands that ran together in a step, on average: how well work is batched.",
            "short",
            (
                Query(
                    f"sum(rate({_COMMANDS}_sum{{$where}}[$__rate_interval]))"
                    f" / sum(rate({_COMMANDS}_count{{$where}}[$__rate_interval]))"
                ),
            ),
            stat=True,
        ),
        Panel(
            "Work that waits",
            "Device time that the waiting commands of all pools will take.",
            "s",
            (Query("sum(tartlet_work_waiting_seconds{$where})"),),
            stat=True,
        ),
        Panel(
            "Steps by engine",
            "Steps that control sent and that ended, a second.",
            "short",
            (Query(rate(f"{_STEP}_count", _ENGINE), "{{tartlet_engine_id}}"),),
        ),
        Panel(
            "Duration of steps",
            "From a step's sending to its result.",
            "s",
            tuple(Query(quantile(q, _STEP, _ENGINE), f"p{q * 100:.0f} {{{{tartlet_engine_id}}}}") for q in (0.5, 0.99)),
        ),
        Panel(
            "Busy share",
            "The share of time in which a step was under way; it is above 1 where steps are sent ahead.",
            "percentunit",
            (Query(rate(f"{_STEP}_sum", _ENGINE), "{{tartlet_engine_id}}"),),
        ),
        Panel(
            "Size of batches",
            "Commands of a step: the median, and the largest.",
            "short",
            tuple(
                Query(quantile(q, _COMMANDS, _ENGINE), f"{name} {{{{tartlet_engine_id}}}}")
                for q, name in ((0.5, "median"), (1.0, "largest"))
            ),
        ),
        Panel(
            "Work that waits, by pool",
            "Device time that waiting commands will take. A pool where it grows is too small.",
            "s",
            (
                Query(
                    "sum by (tartlet_pool, gen_ai_request_model) (tartlet_work_waiting_seconds{$where})",
                    "{{tartlet_pool}} {{gen_ai_request_model}}",
                ),
            ),
        ),
        Panel(
            "Programs by pool",
            "Programs that have a place on an engine of the pool.",
            "short",
            (
                Query(
                    "sum by (tartlet_pool, gen_ai_request_model) (tartlet_work_programs{$where})",
                    "{{tartlet_pool}} {{gen_ai_request_model}}",
                ),
            ),
            stacked=True,
        ),
    ),
)

KV: Final = Board(
    "tartlet-kv",
    "Tartlet / KV cache",
    (
        Panel(
            "Pages held",
            "Pages that programs hold, on all engines.",
            "short",
            (Query("sum(tartlet_pages_held{$where})"),),
            stat=True,
        ),
        Panel(
            "Pages free",
            "Pages that nobody holds, those of the prefix cache among them.",
            "short",
            (Query("sum(tartlet_pages_free{$where})"),),
            stat=True,
        ),
        Panel(
            "Held share",
            "Pages that programs hold, of all pages.",
            "percentunit",
            (
                Query(
                    "sum(tartlet_pages_held{$where})"
                    " / (sum(tartlet_pages_held{$where}) + sum(tartlet_pages_free{$where}))"
                ),
            ),
            stat=True,
        ),
        Panel(
            "Leaked pages",
            "Pages that nobody held and that weren't free. Each is a bug: report it.",
            "short",
            (Query("sum(tartlet_ledger_leaks_total{$where}) or vector(0)"),),
            stat=True,
        ),
        Panel(
            "Held share by engine",
            "Where it stays near 1, programs give way to each other: add engines or pages.",
            "percentunit",
            (
                Query(
                    "sum by (tartlet_engine_id) (tartlet_pages_held{$where}) / sum by (tartlet_engine_id)"
                    " (tartlet_pages_held{$where} + tartlet_pages_free{$where})",
                    "{{tartlet_engine_id}}",
                ),
            ),
        ),
        Panel(
            "Pages by engine",
            "Pages that programs hold.",
            "short",
            (Query("sum by (tartlet_engine_id) (tartlet_pages_held{$where})", "{{tartlet_engine_id}}"),),
            stacked=True,
        ),
    ),
)
