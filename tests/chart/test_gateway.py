"""The chart's gateway: keys, identity, HTTPS, routes to it, its scale, and the chat of `helm test`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chart.render import named, of_kind, refusal, render

KEYS = {"secretName": "api-keys"}


def rendered(**gateway: Any) -> list[dict[str, Any]]:
    return render({"gateway": {"enabled": True, "keys": KEYS, **gateway}})


def container(objects: list[dict[str, Any]]) -> dict[str, Any]:
    (one,) = named(objects, "Deployment", "tartlet-gateway")["spec"]["template"]["spec"]["containers"]
    return dict(one)


def env(objects: list[dict[str, Any]]) -> dict[str, str]:
    return {e["name"].removeprefix("TARTLET_GATEWAY_"): e["value"] for e in container(objects)["env"]}


def test_none_is_there_unless_asked_for() -> None:
    assert not [o for o in render() if o["metadata"]["name"].startswith("tartlet-gateway")]


def test_a_gateway_without_keys_is_refused() -> None:
    assert "gateway.keys.secretName" in refusal({"gateway": {"enabled": True}})


def test_it_reads_the_keys_of_the_secret_and_dials_the_runtime_as_gateway() -> None:
    objects = rendered(keys={"secretName": "api-keys", "key": "team.json"})
    mounts = {m["name"]: m["mountPath"] for m in container(objects)["volumeMounts"]}
    volumes = named(objects, "Deployment", "tartlet-gateway")["spec"]["template"]["spec"]["volumes"]
    secrets = {v["name"]: v["secret"]["secretName"] for v in volumes if "secret" in v}
    assert secrets == {"keys": "api-keys", "tls": "tartlet-gateway-tls"}
    assert env(objects)["KEYS"] == f"{mounts['keys']}/team.json"
    runtime = named(objects, "Service", "tartlet-runtime")
    assert env(objects)["RUNTIME"] == f"tartlet-runtime.prod.svc:{runtime['spec']['ports'][0]['port']}"
    names = named(objects, "Secret", "tartlet-gateway-tls")["metadata"]["annotations"]["tartlet.dev/names"]
    assert names == "gateway.tartlet.prod.tartlet.internal"


def test_the_service_finds_the_port_that_the_gateway_serves_at() -> None:
    objects = rendered(service={"port": 80})
    ports = {p["name"]: p["containerPort"] for p in container(objects)["ports"]}
    assert env(objects)["ADDRESS"] == f"0.0.0.0:{ports['http']}"
    service = named(objects, "Service", "tartlet-gateway")["spec"]
    template = named(objects, "Deployment", "tartlet-gateway")["spec"]["template"]
    assert service["selector"].items() <= template["metadata"]["labels"].items()
    assert (service["ports"][0]["port"], service["ports"][0]["targetPort"]) == (80, "http")


def test_https_takes_the_certificate_of_the_secret() -> None:
    objects = rendered(https={"secretName": "web-tls"})
    mounts = {m["name"]: m["mountPath"] for m in container(objects)["volumeMounts"]}
    assert env(objects)["HTTP_CERTIFICATE"] == f"{mounts['https']}/tls.crt"
    assert env(objects)["HTTP_KEY"] == f"{mounts['https']}/tls.key"
    assert named(objects, "Service", "tartlet-gateway")["spec"]["ports"][0]["appProtocol"] == "https"
    assert "HTTP_KEY" not in env(rendered())


def test_an_autoscaler_owns_the_replicas_and_rates_are_shared_by_the_most() -> None:
    fixed = rendered(replicas=3)
    assert named(fixed, "Deployment", "tartlet-gateway")["spec"]["replicas"] == 3
    assert env(fixed)["REPLICAS"] == "3"
    scaled = rendered(replicas=3, autoscaling={"enabled": True, "maxReplicas": 9})
    assert "replicas" not in named(scaled, "Deployment", "tartlet-gateway")["spec"]
    scaler = named(scaled, "HorizontalPodAutoscaler", "tartlet-gateway")["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (3, 9)
    assert scaler["scaleTargetRef"]["name"] == "tartlet-gateway"
    assert env(scaled)["REPLICAS"] == "9"


def test_an_ingress_leads_each_host_to_the_service() -> None:
    tls = [{"hosts": ["ai.example.org"], "secretName": "ai-tls"}]
    given = {"enabled": True, "className": "nginx", "hosts": ["ai.example.org", "b.example.org"], "tls": tls}
    objects = rendered(ingress=given)
    spec = named(objects, "Ingress", "tartlet-gateway")["spec"]
    assert [rule["host"] for rule in spec["rules"]] == given["hosts"]
    backend = spec["rules"][0]["http"]["paths"][0]["backend"]["service"]
    (port,) = named(objects, "Service", backend["name"])["spec"]["ports"]
    assert backend["port"]["name"] == port["name"]
    assert (spec["ingressClassName"], spec["tls"]) == ("nginx", tls)
    values = {"enabled": True, "keys": KEYS, "ingress": {"enabled": True}}
    assert "gateway.ingress.hosts" in refusal({"gateway": values})


def test_an_http_route_hangs_on_its_parents_and_lets_streams_last() -> None:
    parents = [{"name": "web", "namespace": "ingress"}]
    objects = rendered(httpRoute={"enabled": True, "parentRefs": parents, "hostnames": ["ai.example.org"]})
    spec = named(objects, "HTTPRoute", "tartlet-gateway")["spec"]
    assert (spec["parentRefs"], spec["hostnames"]) == (parents, ["ai.example.org"])
    (rule,) = spec["rules"]
    (backend,) = rule["backendRefs"]
    (port,) = named(objects, "Service", backend["name"])["spec"]["ports"]
    assert backend["port"] == port["port"]
    assert rule["timeouts"] == {"request": "0s"}
    values = {"enabled": True, "keys": KEYS, "httpRoute": {"enabled": True}}
    assert "gateway.httpRoute.parentRefs" in refusal({"gateway": values})


@pytest.mark.parametrize(("chat", "pods"), [({}, 1), ({"secretName": "test-key", "model": "demo"}, 2)])
def test_helm_test_sends_a_chat_if_given_a_key(chat: dict[str, str], pods: int) -> None:
    objects = render({"gateway": {"enabled": True, "keys": KEYS}, "test": {"chat": chat}})
    tests = of_kind(objects, "Pod")
    assert len(tests) == pods
    for pod in tests:
        (one,) = pod["spec"]["containers"]
        compile(one["args"][0], "test.py", "exec")
    if chat:
        chats = named(objects, "Pod", "tartlet-test-chat")["spec"]["containers"][0]["env"]
        given = {e["name"]: e.get("value") for e in chats}
        (port,) = named(objects, "Service", "tartlet-gateway")["spec"]["ports"]
        assert given["URL"] == f"http://tartlet-gateway.prod.svc:{port['port']}"
        assert given["MODEL"] == "demo"
        key = next(e["valueFrom"]["secretKeyRef"] for e in chats if e["name"] == "KEY")
        assert key == {"name": "test-key", "key": "key"}


def test_tokens_are_reviewed_by_an_account_that_may_do_nothing_else() -> None:
    objects = render({"gateway": {"enabled": True, "tokenReview": {"enabled": True, "audience": "team"}}})
    pod = named(objects, "Deployment", "tartlet-gateway")["spec"]["template"]["spec"]
    account = named(objects, "ServiceAccount", pod["serviceAccountName"])["metadata"]
    (binding,) = [
        o for o in of_kind(objects, "ClusterRoleBinding") if account["name"] in [s["name"] for s in o["subjects"]]
    ]
    assert binding["roleRef"]["name"] == "system:auth-delegator"
    assert [(s["name"], s["namespace"]) for s in binding["subjects"]] == [(account["name"], account["namespace"])]
    (mount,) = [m for m in container(objects)["volumeMounts"] if m["name"] == "account"]
    assert (env(objects)["TOKEN_REVIEW_CREDENTIALS"], mount["readOnly"]) == (mount["mountPath"], True)
    assert (env(objects)["TOKEN_REVIEW"], env(objects)["TOKEN_REVIEW_AUDIENCE"]) == ("true", "team")
    assert "KEYS" not in env(objects)
    (volume,) = [v for v in pod["volumes"] if v["name"] == "account"]
    paths = {
        "token" if "serviceAccountToken" in s else s["configMap"]["items"][0]["path"]
        for s in volume["projected"]["sources"]
    }
    assert paths == {"token", "ca.crt"}
    (policy,) = [o for o in of_kind(objects, "NetworkPolicy") if o["metadata"]["name"] == "tartlet-api-server"]
    assert policy["spec"]["podSelector"]["matchExpressions"][0]["values"] == ["operator", "gateway"]


def test_without_reviews_no_gateway_has_rights_or_dials_the_api_server() -> None:
    objects = rendered()
    assert (
        named(objects, "Deployment", "tartlet-gateway")["spec"]["template"]["spec"]["serviceAccountName"] == "tartlet"
    )
    assert not [o for o in of_kind(objects, "ClusterRoleBinding") if o["roleRef"]["name"] == "system:auth-delegator"]
    (policy,) = [o for o in of_kind(objects, "NetworkPolicy") if o["metadata"]["name"] == "tartlet-api-server"]
    assert policy["spec"]["podSelector"]["matchExpressions"][0]["values"] == ["operator"]


def test_tokens_of_an_issuer_stand_in_for_keys() -> None:
    settings = {"oidc_issuer": "https://issuer.example", "oidc_audience": "tartlet"}
    objects = render({"gateway": {"enabled": True, "settings": settings}})
    assert env(objects)["OIDC_ISSUER"] == "https://issuer.example"
    assert "KEYS" not in env(objects)
