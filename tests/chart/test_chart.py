"""The rendered chart: valid values, restricted pods, existing settings, names that don't collide."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tartlet_common.config.settings import ROLES
from tests.chart.render import (
    CHART,
    EVERYTHING,
    KUBERNETES,
    made_pools,
    named,
    of_kind,
    pods,
    refusal,
    render,
    run,
)

CHART_DECIDES = {  # settings that follow from what the chart makes
    "control": {
        *("address", "shared_pools", "allowed_topics", "allowed_names", "allowed_spawn"),
        "check_books",  # for tests alone
        *("advertise", "lease_url", "lease_password_file", "lease_ca_file"),
        *("directory_url", "directory_password_file", "directory_ca_file", "directory_release"),
    },
    "runtime": {
        *("address", "advertise", "control", "cache_dir", "guest_socket"),
        *("journal_dir", "journal_url", "journal_password_file", "journal_authority"),
        *("http_hosts", "http_private_hosts", "http_secrets", "http_secrets_dir"),
    },
    "gateway": {
        *("address", "runtime", "control", "keys", "http_certificate", "http_key", "replicas"),
        *("token_review", "token_review_audience", "token_review_server", "token_review_credentials"),
    },
    "operator": {
        *(
            "namespaces",
            "namespace",
            "kubeconfig",
            "control",
            "runtime",
            "lease_name",
            "identity",
            "release_pools",
            "shared_pools",
        ),
        *("worker_image", "worker_pull_policy", "worker_control", "worker_tls_secret"),
        *("worker_pull_secrets", "worker_otlp_endpoint"),
    },
}
CHART_DECIDES_ALWAYS = {
    *("log_format", "log_level", "health_address"),
    *("tls_certificate", "tls_key", "tls_authority", "tls_domain"),
}


_POOL: dict[str, Any] = {"name": "a", "spec": {"model": {"name": "m"}}}


@pytest.mark.parametrize(
    ("control", "shared"),
    [
        ({}, "prod/demo,prod/two"),
        ({"sharedPools": ["lab/*", "prod/demo"]}, "lab/*,prod/demo,prod/two"),
        ({"shareEnginePools": False}, ""),
        ({"shareEnginePools": False, "sharedPools": ["lab/big"]}, "lab/big"),
    ],
)
def test_control_shares_the_releases_own_pools_and_those_that_are_named(control: dict[str, Any], shared: str) -> None:
    pools = [
        {"name": name, "spec": {"model": {"name": "m"}, "engine": {"backend": "Fake"}}} for name in ("demo", "two")
    ]
    objects = render({"enginePools": pools, "control": control, "operator": {"namespaces": ["team-a", "prod"]}})
    (container,) = named(objects, "Deployment", "tartlet-control")["spec"]["template"]["spec"]["containers"]
    assert {e["name"]: e.get("value") for e in container["env"]}["TARTLET_CONTROL_SHARED_POOLS"] == shared


def test_helm_lint_passes() -> None:
    done = run("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout
    assert "WARNING" not in done.stdout


def test_every_value_is_documented_and_in_the_schema() -> None:
    """The schema refuses values that it doesn't list, so if this renders, both agree."""
    assert render(yaml.safe_load((CHART / "values.yaml").read_text()))
    text = (CHART / "values.yaml").read_text()
    undocumented = []
    documented = False
    for line in text.splitlines():
        documented = documented or line.lstrip().startswith("#")
        if line and not line[0].isspace() and not line.startswith("#"):
            if not documented and line.endswith(("{}", "[]")):
                undocumented.append(line)
            documented = False
    assert not undocumented


@pytest.mark.parametrize("release", ["a.b", "9rel"])
def test_a_release_name_that_no_service_may_have_is_refused_with_a_remedy(release: str) -> None:
    done = run("template", release, str(CHART), *KUBERNETES)
    assert "set fullnameOverride" in done.stderr
    assert run("template", release, str(CHART), *KUBERNETES, values={"fullnameOverride": "rel"}).returncode == 0


def test_images_of_any_registry_and_labels_with_a_prefix_are_accepted() -> None:
    image = {"repository": "registry.example:5000/team/tartlet", "tag": "1.2@sha256:" + "0" * 64}
    labels = {"example.org/team": "serving", "empty": ""}
    resources = {"requests": {"cpu": ".5", "memory": "1.Gi"}, "limits": {"cpu": "1500m", "memory": "1.5Gi"}}
    objects = render({"image": image, "commonLabels": labels, "control": {"resources": resources}})
    deployment = named(objects, "Deployment", "tartlet-control")
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == f"{image['repository']}:{image['tag']}"
    assert container["resources"] == resources
    assert labels.items() <= deployment["metadata"]["labels"].items()


def test_a_pools_choices_may_be_templates_and_the_api_server_checks_the_rest() -> None:
    more = {"engine": {"backend": '{{ "Fake" }}'}, "replicas": "{{ 2 }}", "podTemplate": {"env": [{"name": "A"}]}}
    objects = render({"enginePools": [{"name": "a", "spec": _POOL["spec"] | more}]})
    (pool,) = [p for p in made_pools(objects) if p["name"] == "a"]
    assert (pool["spec"]["engine"]["backend"], pool["spec"]["podTemplate"]) == ("Fake", more["podTemplate"])


class _AsInGo(yaml.SafeLoader):
    """Reads more texts as numbers and booleans than Python's loader, as Helm and the API server do."""


_AsInGo.yaml_implicit_resolvers = {k: list(v) for k, v in yaml.SafeLoader.yaml_implicit_resolvers.items()}
_AsInGo.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[0-9]+e[0-9]+$"), list("0123456789"))


def _names(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the names, namespaces and labels in an object, with their paths."""
    if isinstance(value, list):
        for each in value:
            yield from _names(each, at)
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _names(each, f"{at}.{key}")
    elif re.search(r"(name|Name|namespace|labels\.[^.]+|instance|matchLabels.*|annotations\..*)$", at):
        yield at, value


def test_names_that_look_like_numbers_or_booleans_stay_strings() -> None:
    pools = [{**_POOL, "name": name} for name in ("1e3", "true", "1")]
    values = {**EVERYTHING, "fullnameOverride": "true", "enginePools": pools, "test": {"priorityClassName": "7"}}
    done = run("template", "123", str(CHART), "-n", "2024", *KUBERNETES, values=values)
    assert done.returncode == 0, done.stderr
    objects = [o for o in yaml.load_all(done.stdout, _AsInGo) if o and o["kind"] != "CustomResourceDefinition"]
    found = [(o["kind"], *each) for o in objects for each in _names(o)]
    assert not [each for each in found if not isinstance(each[2], str)]
    assert {"true", "2024", "123", "7"} <= {value for *_, value in found}
    assert [pool["name"] for pool in made_pools(objects)] == ["1e3", "true", "1"]


def test_two_pools_of_one_name_are_refused() -> None:
    pool = {"name": "a", "spec": {"model": {"name": "m"}}}
    assert "two are named" in refusal({"enginePools": [pool, pool]})


@pytest.mark.parametrize("role", ["control", "runtime", "operator", "gateway"])
def test_the_schema_knows_exactly_the_users_settings(role: str) -> None:
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    settings = schema["properties"][role]["properties"]["settings"]["properties"]
    assert set(settings) == set(ROLES[role].model_fields) - CHART_DECIDES[role] - CHART_DECIDES_ALWAYS


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_every_pod_meets_the_restricted_standard(values: dict[str, Any]) -> None:
    seen = list(pods(render(values)))
    assert len(seen) >= 4
    for name, _, spec in seen:
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec), name
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for volume in spec.get("volumes", ()):
            assert set(volume) - {"name"} <= {"emptyDir", "secret", "configMap", "projected", "csi"}, name
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False, name
            assert security["capabilities"] == {"drop": ["ALL"]}, name
            assert security["readOnlyRootFilesystem"] is True, name
            assert "privileged" not in security, name
            assert security.get("runAsGroup", 0) == (0 if container["name"] == "redis" else 10001), name
            assert {"requests", "limits"} <= set(container["resources"]), name
            assert all("hostPort" not in p for p in container.get("ports", ())), name


def test_only_the_operator_carries_a_token() -> None:
    objects = render(EVERYTHING)
    with_token = set()
    for name, _, spec in pods(objects):
        account = named(objects, "ServiceAccount", spec["serviceAccountName"])
        if spec.get("automountServiceAccountToken", account.get("automountServiceAccountToken", True)):
            with_token.add(name)
    assert with_token == {"Deployment/tartlet-operator"}


def test_no_variable_of_a_service_becomes_a_setting() -> None:
    """Kubernetes makes TARTLET_CONTROL_PORT from a Service's name, which would be an unknown setting."""
    assert all(spec["enableServiceLinks"] is False for _, _, spec in pods(render(EVERYTHING)))


def test_environment_variables_are_settings_that_the_roles_accept() -> None:
    settings: dict[str, Any] = {
        "control": {"settings": {"batching": "k-only", "batching_k": 4, "program_commands": 1_048_576}},
        "runtime": {"settings": {"capacity": 2000, "journal_bytes": 67_108_864, "keep_journals": True}},
        "operator": {"settings": {"heartbeat_s": 0.5, "source_hosts": "example.org"}},
        "gateway": {"settings": {"tenant_requests_per_minute": 600, "origins": "https://a.example"}},
    }
    objects = render({**EVERYTHING, **{k: {**dict(EVERYTHING.get(k, {})), **v} for k, v in settings.items()}})
    for role in ("control", "runtime", "operator", "gateway"):
        (container,) = named(objects, "Deployment", f"tartlet-{role}")["spec"]["template"]["spec"]["containers"]
        prefix = f"TARTLET_{role.upper()}_"
        env = {e["name"].removeprefix(prefix).lower(): e for e in container["env"] if e["name"].startswith(prefix)}
        values = {name: e.get("value", "pod-name") for name, e in env.items()}
        loaded = ROLES[role](**values)  # unknown names and values out of range are refused here
        for name, wanted in settings[role]["settings"].items():
            assert getattr(loaded, name) == wanted
        assert loaded.tls_key == Path("/etc/tartlet/tls/tls.key")
        assert container["command"] == ["tartlet", "serve", "--role", role]


def test_what_the_chart_decides_is_all_decided() -> None:
    """On a cluster, a role's addresses, files and names have no default that works."""
    for role, needed in {
        "control": {"address", "shared_pools"},
        "runtime": {"address", "advertise", "control", "cache_dir"},
        "operator": {"namespaces", "control", "runtime", "lease_name", "identity", "worker_image", "worker_control"},
    }.items():
        (container,) = named(render(), "Deployment", f"tartlet-{role}")["spec"]["template"]["spec"]["containers"]
        names = {e["name"] for e in container["env"]}
        assert {f"TARTLET_{role.upper()}_{n.upper()}" for n in needed | CHART_DECIDES_ALWAYS} <= names


def test_probes_ask_the_health_port_and_services_find_their_pods() -> None:
    objects = render()
    for role in ("control", "runtime", "operator"):
        template = named(objects, "Deployment", f"tartlet-{role}")["spec"]["template"]
        (container,) = template["spec"]["containers"]
        ports = {p["name"]: p["containerPort"] for p in container["ports"]}
        assert ports["health"] == 8080
        assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "health"}
        assert container["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "health"}
        for service in of_kind(objects, "Service"):
            if service["metadata"]["name"] == f"tartlet-{role}":
                assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
                assert service["spec"]["ports"][0]["port"] == ports["grpc"]


def test_two_releases_share_no_cluster_scoped_name_but_the_crds() -> None:
    cluster_scoped = {"ClusterRole", "ClusterRoleBinding", "PriorityClass", "Namespace", "PersistentVolume"}
    names = [
        {(o["kind"], o["metadata"]["name"]) for o in render(EVERYTHING, release=release, namespace=namespace)
         if o["kind"] in cluster_scoped}
        for release, namespace in (("tartlet", "a"), ("tartlet", "b"), ("other", "a"))
    ]  # fmt: skip
    assert all(names)
    assert len(set().union(*names)) == sum(map(len, names))
    for each in render(EVERYTHING):
        scoped = each["kind"] in {*cluster_scoped, "CustomResourceDefinition"}
        assert scoped != ("namespace" in each["metadata"]), each["metadata"]["name"]


def test_crds_are_the_generated_ones_and_kept() -> None:
    generated = {
        c["metadata"]["name"]: c for c in map(yaml.safe_load, (p.read_text() for p in (CHART / "files/crds").iterdir()))
    }
    assert len(generated) == 3
    rendered = of_kind(render(), "CustomResourceDefinition")
    assert {c["metadata"]["name"] for c in rendered} == set(generated)
    for each in rendered:
        assert each["spec"] == generated[each["metadata"]["name"]]["spec"]
        assert each["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert not of_kind(render({"crds": {"enabled": False}}), "CustomResourceDefinition")
    loose = of_kind(render({"crds": {"keep": False}}), "CustomResourceDefinition")
    assert all("annotations" not in c["metadata"] for c in loose)


def test_no_part_of_an_install_waits_for_an_image_or_for_a_kind_that_the_release_brings() -> None:
    """Helm waits for the pods of hooks, and builds no object of a kind that the cluster doesn't know."""
    objects = render({**EVERYTHING, "enginePools": [_POOL]})
    assert not {"Job", "EnginePool"} & {o["kind"] for o in objects}
    hooks = {o["metadata"]["annotations"]["helm.sh/hook"]: o for o in objects if _notes(o).get("helm.sh/hook")}
    assert set(hooks) == {"test", "pre-delete"}


def test_an_uninstall_begins_with_the_pools_of_the_values() -> None:
    objects = [o for o in of_kind(render(), "ConfigMap") if o["metadata"]["name"] == "tartlet-pools"]
    (told, hook) = sorted(objects, key=lambda o: "helm.sh/hook" in _notes(o))
    assert "before-hook-creation" in _notes(hook)["helm.sh/hook-delete-policy"].split(",")
    assert not _notes(told)
    env = named(render(), "Deployment", "tartlet-operator")["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "TARTLET_OPERATOR_RELEASE_POOLS", "value": told["metadata"]["name"]} in env
    labels = {"team": "x", "app.kubernetes.io/name": "mine"}
    (pool,) = made_pools(render({"enginePools": [{**_POOL, "labels": labels}]}))
    assert pool["labels"]["team"] == "x"
    assert pool["labels"]["app.kubernetes.io/name"] == "tartlet"
    assert pool["labels"]["app.kubernetes.io/managed-by"] == "tartlet-operator", "Helm doesn't know it"


def _notes(obj: dict[str, Any]) -> dict[str, str]:
    return obj["metadata"].get("annotations") or {}


def test_the_default_pool_takes_its_model_from_the_workers_image() -> None:
    image = {"workerImage": {"repository": "example.org/w", "tag": "v7"}}
    (pool,) = made_pools(render(image))
    assert pool["spec"]["model"]["init"]["image"] == "example.org/w:v7"
    operator = named(render(image), "Deployment", "tartlet-operator")["spec"]["template"]["spec"]["containers"][0]
    assert {"name": "TARTLET_OPERATOR_WORKER_IMAGE", "value": "example.org/w:v7"} in operator["env"]


def test_the_examples_stand_beside_the_default_pool() -> None:
    """A pool of the default's name would be merged with it; one of its model's name would stand by."""
    bodies = [yaml.safe_load(p.read_text()) for p in (CHART.parents[1] / "docs" / "examples").glob("*.yaml")]
    examples = [(b["metadata"]["name"], b["spec"]["model"]["name"]) for b in bodies if b["kind"] == "EnginePool"]
    default = [(p["name"], p["spec"]["model"]["name"]) for p in made_pools(render())]
    assert default
    for names in zip(*examples, *default, strict=True):
        assert len(set(names)) == len(names)
    pools = {name for name, _ in (*examples, *default)}
    inferlets = {b["metadata"]["name"]: b["spec"].get("pool") for b in bodies if b["kind"] == "Inferlet"}
    assert {pool for pool in inferlets.values() if pool} <= pools
    assert {b["spec"]["inferlet"] for b in bodies if b["kind"] == "InferletRun"} <= set(inferlets)


@pytest.mark.parametrize("role", ["runtime", "operator", "gateway"])
def test_disruption_budgets_let_nodes_drain(role: str) -> None:
    objects = render(EVERYTHING)
    budget = named(objects, "PodDisruptionBudget", f"tartlet-{role}")["spec"]
    labels = named(objects, "Deployment", f"tartlet-{role}")["spec"]["template"]["metadata"]["labels"]
    assert (budget["maxUnavailable"], budget["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")
    assert budget["selector"]["matchLabels"].items() <= labels.items()


def test_two_controls_never_run_at_once() -> None:
    spec = named(render(), "Deployment", "tartlet-control")["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (1, "Recreate")


def test_what_users_add_arrives() -> None:
    volume = {"name": "env", "persistentVolumeClaim": {"claimName": "env"}}
    mount = {"name": "env", "mountPath": "/opt/env", "readOnly": True}
    added = {"extraEnv": [{"name": "A", "value": "1"}], "extraVolumes": [volume], "extraVolumeMounts": [mount]}
    placed = {
        "podLabels": {"team": "x"},
        "podAnnotations": {"note": "see above"},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"operator": "Exists"}],
        "priorityClassName": "high",
    }
    values = {"commonLabels": {"cost": "7"}, "imagePullSecrets": [{"name": "pull"}]}
    roles = {role: {**added, **placed} for role in ("control", "runtime", "operator")}
    objects = render({**values, **roles, "gateway": {**EVERYTHING["gateway"], **added, **placed}})
    for role in ("control", "runtime", "operator", "gateway"):
        template = named(objects, "Deployment", f"tartlet-{role}")["spec"]["template"]
        spec, (container,) = template["spec"], template["spec"]["containers"]
        assert {"name": "A", "value": "1"} in container["env"]
        assert volume in spec["volumes"]
        assert mount in container["volumeMounts"]
        assert {"team": "x", "cost": "7"}.items() <= template["metadata"]["labels"].items()
        assert template["metadata"]["annotations"]["note"] == "see above"
        assert spec["nodeSelector"] == {"disk": "ssd"}
        assert spec["tolerations"] == [{"operator": "Exists"}]
        assert spec["priorityClassName"] == "high"
        assert spec["imagePullSecrets"] == [{"name": "pull"}]


def test_engines_are_pulled_and_report_as_the_roles() -> None:
    at = "http://collector:4317"
    objects = render({"imagePullSecrets": [{"name": "a"}, {"name": "b"}], "telemetry": {"otlpEndpoint": at}})
    (container,) = named(objects, "Deployment", "tartlet-operator")["spec"]["template"]["spec"]["containers"]
    env = {e["name"]: e.get("value") for e in container["env"]}
    assert env["TARTLET_OPERATOR_WORKER_PULL_SECRETS"] == "a,b"
    assert env["TARTLET_OPERATOR_WORKER_OTLP_ENDPOINT"] == env["OTEL_EXPORTER_OTLP_ENDPOINT"] == at


def test_every_installation_in_the_readme_renders() -> None:
    """Helm reads digits as numbers, which the schema refuses as names."""
    text = (CHART / "README.md").read_text().replace("\\\n", " ")
    commands = [shlex.split(line) for line in text.splitlines() if line.startswith("    helm install ")]
    assert len(commands) == 2
    for command in commands:
        given = [a for a in command[command.index("charts/tartlet") + 1 :] if a != "--create-namespace"]
        done = run("template", "tartlet", str(CHART), *KUBERNETES, *given)
        assert done.returncode == 0, done.stderr
