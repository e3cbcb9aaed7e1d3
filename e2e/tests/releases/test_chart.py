"""The chart's own test, its notes, its certificates, and the ownership of CRDs."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from e2e.cluster.artifacts.requirements import go
from e2e.cluster.kube import Kube, Object, Refused, step
from e2e.cluster.layout import ROOT
from e2e.cluster.provider import Own
from e2e.tests.conftest import CHART, NAMESPACE, OTHER, RELEASE
from e2e.tests.security.test_identities import ask, held, refused_at_the_door
from e2e.tests.support.calls import Identity
from tests.chart.render import render
from tests.lacking import lacking

DEFINITIONS = ("enginepools.tartlet.dev", "inferletruns.tartlet.dev", "inferlets.tartlet.dev")
ROLES = ("client", "control", "operator", "runtime", "worker")
RENEWAL = "tartlet.dev/renew-after"
CERT_MANAGER = "github.com/cert-manager/cert-manager@v1.21.2"
"""The Go module with cert-manager's CRDs."""


def definitions_of(kube: Kube) -> set[str]:
    """Returns the CRDs in a release's manifest."""
    manifest = yaml.safe_load_all(kube.helm("get", "manifest", RELEASE))
    return {o["metadata"]["name"] for o in manifest if o and o["kind"] == "CustomResourceDefinition"}


def definitions(kube: Kube) -> dict[str, tuple[str, str]]:
    """Returns the UIDs and owners of the cluster's CRDs."""
    found = {}
    for each in kube.items("crds"):
        meta = each["metadata"]
        if meta["name"] in DEFINITIONS:
            notes = meta["annotations"]
            assert notes["helm.sh/resource-policy"] == "keep"
            found[meta["name"]] = meta["uid"], notes["meta.helm.sh/release-namespace"]
    return found


def upgrade(kube: Kube, *arguments: str) -> None:
    """Upgrades the release with the same values and further ones."""
    kube.helm("upgrade", RELEASE, CHART, "--reuse-values", "--wait", "--timeout", "180s", *arguments)


def test_helm_test_launches_a_program_and_fails_where_none_runs(kube: Kube, second: Kube) -> None:
    with step("helm test"):
        assert "Phase:          Succeeded" in kube.helm("test", RELEASE, "--timeout", "120s")
    assert not [p for p in kube.items("pods") if p["metadata"]["name"].endswith("-test")]
    second("scale", "deploy/tartlet-runtime", "--replicas=0")
    with step("helm test, without a runtime"), pytest.raises(Refused, match=r"tartlet-test|timed out"):
        second.helm("test", RELEASE, "--timeout", "15s")
    second("delete", "pod/tartlet-test", "--ignore-not-found", "--grace-period=0", "--force")
    second("scale", "deploy/tartlet-runtime", "--replicas=1")
    second("rollout", "status", "deploy/tartlet-runtime", "--timeout=60s")


def test_the_notes_tell_commands_that_work(kube: Kube, fake_pool: str, tmp_path: Path) -> None:
    notes = kube.helm("get", "notes", RELEASE)
    told = [shlex.split(line, comments=True) for line in notes.splitlines() if line.startswith("  ")]
    commands = [command for command in told if command]
    assert {command[0] for command in commands} == {"helm", "kubectl", "tartlet"}
    (tmp_path / "prog.py").write_text("async def main():\n    return 'as the notes say'\n")
    for command in commands:
        if command[0] != "helm" and "delete" not in command:
            said = _done(kube, command, tmp_path)
            assert command[0] == "kubectl" or "as the notes say" in said, (command, said)
    assert ["helm", "-n", NAMESPACE, "test", RELEASE] in commands
    removed = [command for command in commands if "delete" in command]
    assert len(removed) == 2
    for command in removed:  # the commands name the objects that they would remove
        _done(kube, [*command, "--dry-run=server"], tmp_path)


def _done(kube: Kube, command: list[str], directory: Path) -> str:
    """Runs a command of the notes as the cluster's administrator and returns its output."""
    cluster, rest = kube.cluster, command[1:]
    if command[0] == "kubectl":
        return kube(*rest)
    inside = cluster.enter("net") if isinstance(cluster, Own) else []
    config = directory / "config"
    config.write_text(kube("config", "view", "--raw", "--minify", "--flatten"))
    told = [*inside, "env", f"KUBECONFIG={config}", str(Path(sys.executable).with_name("tartlet")), *rest]
    done = subprocess.run(told, cwd=directory, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout + done.stderr


def test_a_second_release_leaves_the_definitions_to_the_first(kube: Kube, second: Kube) -> None:
    assert definitions_of(kube) == set(DEFINITIONS)
    assert definitions_of(second) == set()
    before = definitions(kube)
    assert {owner for _, owner in before.values()} == {NAMESPACE}
    with step("upgrade, crds.enabled=false"):
        upgrade(second, "--set", "crds.enabled=false")
    assert definitions_of(second) == set()
    assert definitions(kube) == before


def test_definitions_can_be_handed_over_and_back(kube: Kube, second: Kube, fake_pool: str) -> None:
    """No object of these kinds is removed meanwhile."""
    uids = {name: uid for name, (uid, _) in definitions(kube).items()}
    pools = {p["metadata"]["uid"] for p in kube.items("epool")}
    for to, from_ in ((second, kube), (kube, second)):
        notes = (f"meta.helm.sh/release-name={RELEASE}", f"meta.helm.sh/release-namespace={to.namespace}")
        to("annotate", "--overwrite", "crd", *DEFINITIONS, *notes)
        with step(f"handed over to {to.namespace}"):
            upgrade(to, "--set", "crds.enabled=true")
            upgrade(from_, "--set", "crds.enabled=true")
        assert definitions_of(to) == set(DEFINITIONS)
        assert definitions_of(from_) == set()
        assert definitions(kube) == {name: (uid, to.namespace) for name, uid in uids.items()}
    assert {p["metadata"]["uid"] for p in kube.items("epool")} == pools


def certificates(kube: Kube) -> dict[str, tuple[str, str]]:
    """Returns certificate and trusted authorities of each identity and of the authority."""
    names = {role: f"{RELEASE}-{role}-tls" for role in ROLES} | {"ca": f"{RELEASE}-ca"}
    return {role: (held(kube, name)["certificate"], held(kube, name)["authority"]) for role, name in names.items()}


def changed(before: dict[str, tuple[str, str]], after: dict[str, tuple[str, str]]) -> set[str]:
    """Returns the identities whose certificates have changed."""
    assert before.keys() == after.keys()
    return {role for role in before if before[role][0] != after[role][0]}


@pytest.mark.beyond_gate
def test_certificates_are_kept_until_they_are_due(kube: Kube, second: Kube) -> None:
    first = certificates(second)
    with step("upgrade"):
        upgrade(second, "--set", "log.level=warning")
    assert certificates(second) == first
    second("annotate", "--overwrite", "secret", f"{RELEASE}-operator-tls", f"{RENEWAL}=1")
    with step("upgrade, one certificate due"):
        upgrade(second)
    renewed = certificates(second)
    assert changed(first, renewed) == {"operator"}
    with step("upgrade, another name"):
        upgrade(second, "--set", "clusterDomain=cluster.example")
    named = certificates(second)
    assert changed(renewed, named) == {"control", "runtime"}
    assert {trust for _, trust in named.values()} == {first["ca"][1]}


def test_certificates_of_ones_own_do_not_take_those_that_are_there_away(kube: Kube, second: Kube) -> None:
    existing = ("--set", "certificates.provider=existing", "--dry-run=server")
    with pytest.raises(Refused, match=r"would remove the Secrets .*resource-policy=keep") as refused:
        upgrade(second, *existing)
    (annotate,) = re.findall(r"\(kubectl (.*?)\)", str(refused.value))
    second(*annotate.split()[2:])
    try:
        upgrade(second, *existing)
    finally:
        second("annotate", "secret", "-l", f"app.kubernetes.io/instance={RELEASE}", "helm.sh/resource-policy-")


def test_a_new_authority_is_trusted_beside_the_old_one_for_a_while(kube: Kube, second: Kube) -> None:
    first, operator = certificates(second), held(second, f"{RELEASE}-operator-tls")
    second("annotate", "--overwrite", "secret", f"{RELEASE}-ca", f"{RENEWAL}=1")
    with step("upgrade, the authority due"):
        upgrade(second)
    renewed = certificates(second)
    assert changed(first, renewed) == {*ROLES, "ca"}
    (trust,) = {trust for _, trust in renewed.values()}
    assert trust == renewed["ca"][0] + first["ca"][0]
    callers = {"old": trusting(operator, trust), "new": held(second, f"{RELEASE}-operator-tls")}
    assert {a["code"] for a in ask(second, callers, ("Control/State", "Programs/List"))} == {"OK"}
    with step("helm test, with new certificates"):
        second.helm("test", RELEASE, "--timeout", "120s")


def test_a_release_lets_nobody_of_another_in(kube: Kube, second: Kube) -> None:
    trust = held(kube, f"{RELEASE}-ca")["authority"]
    theirs = {role: held(second, f"{RELEASE}-{role}-tls") for role in ROLES}
    strangers = {f"{role} of {OTHER}": trusting(identity, trust) for role, identity in theirs.items()}
    refused_at_the_door(kube, {**strangers, "trusting its own": theirs["operator"]})


def trusting(identity: Identity, authority: str) -> Identity:
    """Returns an identity that trusts servers of the given authority."""
    return {"certificate": identity["certificate"], "key": identity["key"], "authority": authority}


@pytest.fixture
def cert_manager(kube: Kube) -> Iterator[None]:
    """Installs cert-manager's CRDs from its Go module."""
    done = subprocess.run(
        [go(), "mod", "download", "-json", CERT_MANAGER], capture_output=True, text=True, check=False, cwd=ROOT / "e2e"
    )
    if done.returncode != 0:
        lacking(f"no definitions of cert-manager: {done.stderr[-200:]}")
    folder = Path(json.loads(done.stdout)["Dir"]) / "deploy" / "crds"
    files = [
        word for kind in ("certificates", "issuers") for word in ("-f", str(folder / f"cert-manager.io_{kind}.yaml"))
    ]
    if "certificates.cert-manager.io" in kube("get", "crds", "-o", "name"):
        yield  # definitions belong to no namespace
        return
    kube("create", *files)
    try:
        kube("wait", "--for=condition=Established", "--timeout=30s", *files)
        yield
    finally:
        kube("delete", *files, "--timeout=60s")


def test_cert_manager_would_take_what_it_is_asked_for(kube: Kube, second: Kube, cert_manager: None) -> None:
    corporate = {"name": "corp", "kind": "ClusterIssuer", "group": "cert-manager.io"}
    for values in (
        {"certificates": {"provider": "certManager"}},
        {
            "certificates": {"provider": "certManager", "issuerRef": corporate, "days": 30},
            "operator": {"namespaces": [NAMESPACE, OTHER]},
        },
    ):
        objects = [o for o in render(values, namespace=NAMESPACE) if o["apiVersion"].startswith("cert-manager.io/")]
        assert {o["kind"] for o in objects} <= {"Certificate", "Issuer"}
        assert len(objects) >= 6
        checked(kube, *objects)
    broken: Object = next(o for o in objects if o["kind"] == "Certificate")
    for field, value in (("usages", ["telling fortunes"]), ("dnsName", "control"), ("issuerRef", {"kind": "Issuer"})):
        with pytest.raises(Refused, match=field):
            checked(kube, {**broken, "spec": {**broken["spec"], field: value}})


def checked(kube: Kube, *objects: Object) -> None:
    """Validates objects against their schemas with a dry run."""
    for namespace in {o["metadata"]["namespace"] for o in objects}:
        there = yaml.safe_dump_all(o for o in objects if o["metadata"]["namespace"] == namespace)
        kube("create", "-n", namespace, "--dry-run=server", "--validate=strict", "-f", "-", text=there)
