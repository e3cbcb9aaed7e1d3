"""Two releases that would watch one namespace. Only an API server shows this, so the test needs one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chart.render import CHART, of_kind, render, run
from tests.operator.api_server import ApiServer, api_server_up

BINDINGS = "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings"


@pytest.fixture(scope="module")
def api_server(repo: Path) -> Iterator[ApiServer]:
    """With `first` in namespace `one`, which watches `one` and `two`, and `away` in `three`, which watches `four`."""
    with api_server_up(repo / "crds") as server:
        for name in ("one", "two", "three", "four", "five"):
            server.create_namespace(name)
        for release, home, watched in (("first", "one", ["one", "two"]), ("away", "three", ["four"])):
            objects = render({"operator": {"namespaces": watched}}, release=release, namespace=home)
            for each in of_kind(objects, "RoleBinding"):
                owner = {"meta.helm.sh/release-name": release, "meta.helm.sh/release-namespace": home}  # as Helm has it
                each["metadata"]["annotations"] = owner
                server.call("POST", BINDINGS.format(each["metadata"]["namespace"]), each)
        yield server


def helm(server: ApiServer, release: str, home: str, *watched: str) -> str:
    """Return Helm's complaint, or ""."""
    values: dict[str, Any] = {"operator": {"namespaces": list(watched)}}
    at = ("--kubeconfig", str(server.kubeconfig), "-n", home, "--dry-run=server")
    done = run("install", release, str(CHART), *at, values=values)
    assert bool(done.returncode) == ("INSTALLATION FAILED" in done.stderr), done.stderr
    return done.stderr.partition("INSTALLATION FAILED")[2]


@pytest.mark.parametrize(
    ("release", "home", "watched", "taken"),
    [
        ("second", "five", ["five", "two"], "two"),
        ("second", "two", [], "two"),  # its own, where none are given
        ("second", "one", ["five"], ""),  # where nobody's Deployment is
        ("first", "five", ["one"], "one"),  # of the same name, and another release
        ("second", "five", [], ""),
        ("second", "three", [], ""),  # `away` runs there, and watches elsewhere
        ("first", "one", ["one", "two", "five"], ""),  # itself
        ("first", "one", ["one", "four"], "four"),
    ],
)
def test_a_release_cannot_watch_a_namespace_that_another_release_watches(
    api_server: ApiServer, release: str, home: str, watched: list[str], taken: str
) -> None:
    said = helm(api_server, release, home, *watched)
    if not taken:
        assert said == ""
        return
    owner, where = ("away", "three") if taken == "four" else ("first", "one")
    assert f'release "{owner}" of namespace "{where}" already watches namespace "{taken}"' in said
    assert f'leave "{taken}" out of operator.namespaces' in said


def test_what_another_has_left_is_free(api_server: ApiServer) -> None:
    api_server.call("DELETE", f"{BINDINGS.format('four')}/away-operator")
    assert helm(api_server, "second", "five", "four") == ""
