"""Dashboards about the ways in: the gateway's HTTP API, and the operator's objects."""

from __future__ import annotations

from typing import Final

from tools.dashboards.board import Board, Panel, Query, quantile, rate

_HTTP: Final = "http_server_request_duration_seconds"
_FIRST_BYTE: Final = "tartlet_gateway_time_to_first_byte_seconds"
_ROUTE: Final = "http_route"
_OPERATOR: Final = "tartlet_operator"

GATEWAY: Final = Board(
    "tartlet-gateway",
    "Tartlet / Gateway",
    (
        Panel(
            "Under way",
            "Requests that have no whole reply yet, streams among them.",
            "short",
            (Query("sum(http_server_active_requests{$where})"),),
            stat=True,
        ),
        Panel(
            "Requests a second",
            "Requests that got their reply.",
            "reqps",
            (Query(f"sum(rate({_HTTP}_count{{$where}}[$__rate_interval]))"),),
            stat=True,
        ),
        Panel(
            "Failed share",
            "Requests that the server's fault ended (status 5xx), of all.",
            "percentunit",
            (
                Query(
                    f'(sum(rate({_HTTP}_count{{$where, http_response_status_code=~"5.."}}[$__rate_interval]))'
                    " or vector(0))"
                    f" / sum(rate({_HTTP}_count{{$where}}[$__rate_interval]))"
                ),
            ),
            stat=True,
        ),
        Panel(
            "Certificates expire",
            "When the first certificate of any process expires.",
            "dateTimeFromNow",
            (Query("1000 * min(tartlet_certificate_expiry_seconds{$where})"),),
            stat=True,
        ),
        Panel(
            "Requests by status",
            "429: over a tenant's rate; 499: the client left; 503: no engine.",
            "reqps",
            (Query(rate(f"{_HTTP}_count", "http_response_status_code"), "{{http_response_status_code}}"),),
            stacked=True,
        ),
        Panel(
            "Requests by route",
            "Requests that got their reply.",
            "reqps",
            (Query(rate(f"{_HTTP}_count", _ROUTE), "{{http_route}}"),),
            stacked=True,
        ),
        Panel(
            "First byte",
            "From a request's headers to the first byte of the reply's body.",
            "s",
            tuple(Query(quantile(q, _FIRST_BYTE, _ROUTE), f"p{q * 100:.0f} {{{{http_route}}}}") for q in (0.5, 0.99)),
        ),
        Panel(
            "Whole reply",
            "From a request's headers to the reply's last byte.",
            "s",
            tuple(Query(quantile(q, _HTTP, _ROUTE), f"p{q * 100:.0f} {{{{http_route}}}}") for q in (0.5, 0.99)),
        ),
    ),
)

OPERATOR: Final = Board(
    "tartlet-operator",
    "Tartlet / Operator",
    (
        Panel(
            "Leaders",
            "Operators that hold the Lease. Any other number than 1 is an alert.",
            "short",
            (Query(f"sum({_OPERATOR}_leading{{$where}})"),),
            stat=True,
        ),
        Panel(
            "Objects that wait",
            "Objects that wait to be looked at.",
            "short",
            (Query(f"sum({_OPERATOR}_queue{{$where}})"),),
            stat=True,
        ),
        Panel(
            "Runs that wait",
            "InferletRuns that wait for an engine of their pool.",
            "short",
            (Query(f"sum({_OPERATOR}_runs_waiting{{$where}}) or vector(0)"),),
            stat=True,
        ),
        Panel(
            "Last event",
            "Time since the API server last sent anything.",
            "s",
            (Query(f"max({_OPERATOR}_watch_age_seconds{{$where}})"),),
            stat=True,
        ),
        Panel(
            "Objects by state",
            "Inferlets, EnginePools and InferletRuns, by the state in their status.",
            "short",
            (Query(f"sum by (kind, state) ({_OPERATOR}_objects{{$where}})", "{{kind}} {{state}}"),),
            stacked=True,
        ),
        Panel(
            "Failures",
            "Objects that couldn't be brought about, by reason.",
            "short",
            (
                Query(
                    f"sum by (kind, reason) (rate({_OPERATOR}_reconcile_errors_total{{$where}}[$__rate_interval]))"
                    " or vector(0)",
                    "{{kind}} {{reason}}",
                ),
            ),
        ),
        Panel(
            "Looks a second",
            "Objects that were looked at, and statuses that were written.",
            "short",
            (
                Query(rate(f"{_OPERATOR}_reconciles_total", "kind"), "looks {{kind}}"),
                Query(rate(f"{_OPERATOR}_status_writes_total", "kind"), "writes {{kind}}"),
            ),
        ),
        Panel(
            "Duration of a look",
            "Time to bring an object about.",
            "s",
            tuple(
                Query(quantile(q, f"{_OPERATOR}_reconcile_duration_seconds", "kind"), f"p{q * 100:.0f} {{{{kind}}}}")
                for q in (0.5, 0.99)
            ),
        ),
    ),
)
