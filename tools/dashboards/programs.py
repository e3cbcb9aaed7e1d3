"""Dashboards about programs: what runs, how they end, and how long users wait."""

from __future__ import annotations

from typing import Final

from tools.dashboards.board import Board, Panel, Query, quantile, rate

_RUNTIME: Final = ', app_kubernetes_io_component="runtime"'
_ENDED: Final = "tartlet_programs_ended_total"
_AGENT: Final = "gen_ai_invoke_agent_duration_seconds"
_FIRST: Final = "gen_ai_server_time_to_first_token_seconds"
_EACH: Final = "gen_ai_server_time_per_output_token_seconds"
_TOKENS: Final = "gen_ai_client_token_usage"

PROGRAMS: Final = Board(
    "tartlet-programs",
    "Tartlet / Programs",
    (
        Panel(
            "Running",
            "Programs that run now, in all runtimes.",
            "short",
            (Query(f"sum(tartlet_programs_running{{$where{_RUNTIME}}})"),),
            stat=True,
        ),
        Panel(
            "Ended a second",
            "Programs that ended, whether well or not.",
            "short",
            (Query(f"sum(rate({_ENDED}{{$where{_RUNTIME}}}[$__rate_interval]))"),),
            stat=True,
        ),
        Panel(
            "Failed share",
            "Of the programs that ended, the share that failed.",
            "percentunit",
            (
                Query(
                    f'(sum(rate({_ENDED}{{$where{_RUNTIME}, error_type!=""}}[$__rate_interval])) or vector(0))'
                    f" / sum(rate({_ENDED}{{$where{_RUNTIME}}}[$__rate_interval]))"
                ),
            ),
            stat=True,
        ),
        Panel(
            "Tokens a second",
            "Tokens that programs sampled, counted when they end.",
            "short",
            (Query(f'sum(rate({_TOKENS}_sum{{$where, gen_ai_token_type="output"}}[$__rate_interval]))'),),
            stat=True,
        ),
        Panel(
            "Programs by runtime",
            "A runtime that has none while others have many takes no new programs: look at its readiness.",
            "short",
            (Query(f"sum by (pod) (tartlet_programs_running{{$where{_RUNTIME}}})", "{{pod}}"),),
            stacked=True,
        ),
        Panel(
            "Ends by error",
            "Programs that ended, by the error's name; without a name they ended well.",
            "short",
            (Query(rate(_ENDED, "error_type", _RUNTIME), "{{error_type}}"),),
            stacked=True,
        ),
        Panel(
            "Duration of programs",
            "From a program's start to its end, by model.",
            "s",
            tuple(
                Query(quantile(q, _AGENT, "gen_ai_request_model"), f"p{q * 100:.0f} {{{{gen_ai_request_model}}}}")
                for q in (0.5, 0.99)
            ),
        ),
        Panel(
            "Tokens by kind",
            "Tokens of prompts and sampled tokens a second, counted when programs end.",
            "short",
            (Query(rate(f"{_TOKENS}_sum", "gen_ai_token_type"), "{{gen_ai_token_type}}"),),
        ),
        Panel(
            "Memory of runtimes",
            "Memory that programs, compilers, journals and outputs have taken of the runtime's bound.",
            "bytes",
            (
                Query(
                    "sum by (pod, tartlet_memory_use) (tartlet_memory_taken_bytes{$where})",
                    "{{pod}} {{tartlet_memory_use}}",
                ),
                Query("max by (pod) (tartlet_memory_limit_bytes{$where})", "{{pod}} limit"),
            ),
        ),
        Panel(
            "Links resumed",
            "Connections of control that broke and went on where they were. Many mean a bad network.",
            "short",
            (
                Query(
                    "sum by (tartlet_link_peer) (increase(tartlet_link_resumes_total{$where}[$__rate_interval]))"
                    " or vector(0)",
                    "{{tartlet_link_peer}}",
                ),
            ),
        ),
    ),
)

SLO: Final = Board(
    "tartlet-slo",
    "Tartlet / Service levels",
    (
        *(
            Panel(
                f"First token, p{q * 100:.0f}",
                "From a program's start to its first sampled token.",
                "s",
                (Query(quantile(q, _FIRST)),),
                stat=True,
            )
            for q in (0.5, 0.99)
        ),
        *(
            Panel(
                f"Time a token, p{q * 100:.0f}",
                "Mean time between a program's sampled tokens.",
                "s",
                (Query(quantile(q, _EACH)),),
                stat=True,
            )
            for q in (0.5, 0.99)
        ),
        Panel(
            "First token by model",
            "From a program's start to its first sampled token.",
            "s",
            tuple(
                Query(quantile(q, _FIRST, "gen_ai_request_model"), f"p{q * 100:.0f} {{{{gen_ai_request_model}}}}")
                for q in (0.5, 0.95, 0.99)
            ),
        ),
        Panel(
            "Time a token by model",
            "Mean time between a program's sampled tokens.",
            "s",
            tuple(
                Query(quantile(q, _EACH, "gen_ai_request_model"), f"p{q * 100:.0f} {{{{gen_ai_request_model}}}}")
                for q in (0.5, 0.95, 0.99)
            ),
        ),
        Panel(
            "Programs that ended well",
            "The share of ended programs without an error, over an hour: compare it with your objective.",
            "percentunit",
            (
                Query(
                    f'sum(increase({_ENDED}{{$where{_RUNTIME}, error_type=""}}[1h]))'
                    f" / sum(increase({_ENDED}{{$where{_RUNTIME}}}[1h]))"
                ),
            ),
        ),
        Panel(
            "First tokens within a second",
            "The share of programs whose first token came within a second, over an hour.",
            "percentunit",
            (
                Query(
                    f'sum(increase({_FIRST}_bucket{{$where, le="1.0"}}[1h]))'
                    f" / sum(increase({_FIRST}_count{{$where}}[1h]))"
                ),
            ),
        ),
    ),
)
