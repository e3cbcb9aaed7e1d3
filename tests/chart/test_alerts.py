"""Alerts fire on what they name and clear afterwards, as Debian's promtool evaluates them; each has its runbook."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.chart.render import EVERYTHING, of_kind, render
from tests.lacking import lacking

ROOT: Final = Path(__file__).resolve().parents[2]
NS: Final = 'namespace="prod"'
RUNTIME: Final = f'{NS}, app_kubernetes_io_component="runtime"'
BAD_MIN: Final = 120
"""Minutes for which a series has its bad value; before and after, the value is good for as long."""


def gauge(good: float, bad: float) -> str:
    """Return promtool's series of a gauge: good, bad, good."""
    return f"{good}+0x{BAD_MIN} {bad}+0x{BAD_MIN} {good}+0x{BAD_MIN}"


def counter(good: float, bad: float) -> str:
    """Return promtool's series of a counter that grows by `good`, `bad`, then `good` a minute."""
    return f"0+{good}x{BAD_MIN} {good * BAD_MIN}+{bad}x{BAD_MIN} {(good + bad) * BAD_MIN}+{good}x{BAD_MIN}"


FIRST: Final = f'gen_ai_server_time_to_first_token_seconds_bucket{{{NS}, gen_ai_request_model="demo"'
HTTP: Final = f"http_server_request_duration_seconds_count{{{NS}, http_response_status_code"
SERIES: Final[dict[str, dict[str, str]]] = {
    "TartletPodDown": {f'up{{{NS}, pod="tartlet-control-0"}}': gauge(1, 0)},
    "TartletNoLeader": {
        f'tartlet_operator_leading{{{NS}, pod="a"}}': gauge(1, 1),
        f'tartlet_operator_leading{{{NS}, pod="b"}}': gauge(0, 1),
    },
    "TartletReconcileErrors": {
        f'tartlet_operator_reconcile_errors_total{{{NS}, kind="EnginePool", reason="ApiError"}}': counter(0, 20)
    },
    "TartletPoolNotReady": {f'tartlet_operator_objects{{{NS}, kind="EnginePool", state="not_ready"}}': gauge(0, 1)},
    "TartletRunsWait": {f'tartlet_operator_runs_waiting{{{NS}, tartlet_pool="prod/demo"}}': gauge(0, 3)},
    "TartletOperatorStalled": {f"tartlet_operator_watch_age_seconds{{{NS}}}": gauge(10, 1000)},
    "TartletWorkWaits": {
        f'tartlet_work_waiting_seconds{{{NS}, tartlet_pool="prod/demo", gen_ai_request_model="demo"}}': gauge(1, 60)
    },
    "TartletPagesShort": {
        f'tartlet_pages_free{{{NS}, tartlet_engine_id="e"}}': gauge(50, 1),
        f'tartlet_pages_held{{{NS}, tartlet_engine_id="e"}}': gauge(50, 99),
    },
    "TartletProgramsFail": {
        f"tartlet_programs_ended_total{{{RUNTIME}}}": counter(60, 60),
        f'tartlet_programs_ended_total{{{RUNTIME}, error_type="ProgramFailed"}}': counter(1, 30),
    },
    "TartletFirstTokenSlow": {
        FIRST + ', le="1"}': counter(60, 0),
        FIRST + ', le="20"}': counter(60, 60),
        FIRST + ', le="+Inf"}': counter(60, 60),
    },
    "TartletGatewayErrors": {HTTP + '="200"}': counter(60, 60), HTTP + '="503"}': counter(0, 30)},
    "TartletMemoryShort": {
        f'tartlet_memory_taken_bytes{{{NS}, pod="r", tartlet_memory_use="programs"}}': gauge(10, 98),
        f'tartlet_memory_limit_bytes{{{NS}, pod="r"}}': gauge(100, 100),
    },
    "TartletLinksBreak": {f'tartlet_link_resumes_total{{{NS}, tartlet_link_peer="worker"}}': counter(0, 30)},
    "TartletCertificateExpires": {  # promtool's clock begins at 0
        f'tartlet_certificate_expiry_seconds{{{NS}, pod="c", tartlet_certificate="tls_certificate"}}': gauge(
            90 * 86400, 3 * 86400
        )
    },
    "TartletLeakedPages": {f'tartlet_ledger_leaks_total{{{NS}, tartlet_engine_id="e"}}': gauge(0, 2)},
}
"""For each alert the series that make it fire."""


def rules() -> dict[str, Any]:
    """Return the rules of the chart as Prometheus reads them from a file."""
    (rule,) = of_kind(render(EVERYTHING), "PrometheusRule")
    spec: dict[str, Any] = rule["spec"]
    return spec


def alerts() -> dict[str, dict[str, Any]]:
    """Return the alerts by name."""
    return {rule["alert"]: rule for group in rules()["groups"] for rule in group["rules"]}


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        lacking("no promtool: apt-get install prometheus")
    return found


def judge(promtool: str, directory: Path, tests: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    """Run promtool over the chart's rules with these tests."""
    (directory / "rules.yaml").write_text(yaml.safe_dump(rules()))
    file = directory / "tests.yaml"
    file.write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": "5m", "tests": tests}))
    return subprocess.run(
        [promtool, "test", "rules", str(file)], capture_output=True, text=True, timeout=60, check=False
    )


def watched(name: str, *minutes: int) -> dict[str, Any]:
    """Return promtool's test that an alert, given its series, does not fire at these minutes."""
    series = [{"series": key, "values": values} for key, values in SERIES[name].items()]
    quiet = [{"eval_time": f"{minute}m", "alertname": name, "exp_alerts": []} for minute in minutes]
    return {"interval": "1m", "input_series": series, "alert_rule_test": quiet}


def test_each_alert_has_series_that_make_it_fire_and_a_runbook_that_says_what_to_do() -> None:
    assert set(alerts()) == set(SERIES)
    text = (ROOT / "docs" / "runbooks.md").read_text()
    assert set(re.findall(r"^## (\w+)$", text, re.MULTILINE)) == set(alerts())
    for name, alert in alerts().items():
        assert alert["annotations"]["runbook_url"] == f"docs/runbooks.md#{name.lower()}"


def test_each_alert_fires_while_its_series_are_bad_and_at_no_other_time(promtool: str, tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules()))
    subprocess.run([promtool, "check", "rules", str(tmp_path / "rules.yaml")], check=True, timeout=60)
    done = judge(promtool, tmp_path, [watched(name, BAD_MIN - 1, 3 * BAD_MIN - 1) for name in SERIES])
    assert done.returncode == 0, done.stdout + done.stderr
    done = judge(promtool, tmp_path, [watched(name, 2 * BAD_MIN - 1) for name in SERIES])
    fired = set(re.findall(r'got:\[.*?alertname="(\w+)"', done.stdout + done.stderr, re.DOTALL))
    assert fired == set(SERIES)
