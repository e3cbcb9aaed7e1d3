"""Lists the connections that Tartlet's NetworkPolicies must allow and those that they must refuse.

Both lists are for a release in a namespace whose operator watches that namespace alone, and are written out, not
derived from the chart.
"""

from __future__ import annotations

from collections.abc import Iterator

from e2e.cluster.network.netpol import Flow, Host, Pod

NODE = "10.89.0.2"
API_SERVER = "10.89.0.1"
METADATA_SERVICE = "169.254.169.254"
WORLD = "93.184.216.34"
REDIS = 6379

Named = tuple[str, Flow]


def role(component: str, release: str, namespace: str) -> Pod:
    """Returns a pod of the release; an engine's pod carries the labels of its pool."""
    labels = {"app.kubernetes.io/name": "tartlet", "app.kubernetes.io/component": component}
    if component == "worker":
        labels |= {"tartlet.dev/pool": "demo", "app.kubernetes.io/managed-by": "tartlet-operator"}
    else:
        labels["app.kubernetes.io/instance"] = release
    return Pod(namespace, labels, ip="10.200.0.9", ports={"health": 8080}, node=NODE)


DNS = Pod("kube-system", {"k8s-app": "kube-dns"}, ip="10.200.0.2")
KUBELET = Host(NODE)


def must_pass(release: str, namespace: str) -> Iterator[Named]:
    """Yields the connections that a working release needs."""
    control, runtime, worker, operator = (
        role(r, release, namespace) for r in ("control", "runtime", "worker", "operator")
    )
    client = Pod(namespace, {"tartlet.dev/client": "true"}, ip="10.200.0.20")
    for name, pod in (("runtime", runtime), ("worker", worker), ("operator", operator)):
        yield f"{name} to control", Flow(pod, control, 7443)
        yield f"{name} asks DNS", Flow(pod, DNS, 53, "UDP")
        yield f"{name} asks DNS over TCP", Flow(pod, DNS, 53)
    yield "operator to runtime", Flow(operator, runtime, 7444)
    yield "runtime to runtime", Flow(runtime, role("runtime", release, namespace), 7444)
    yield "gateway to runtime", Flow(role("gateway", release, namespace), runtime, 7444)
    yield "a pod marked as client to runtime", Flow(client, runtime, 7444)
    yield "helm test to runtime", Flow(role("test", release, namespace), runtime, 7444)
    yield "operator to the API server", Flow(operator, Host(API_SERVER), 6443)
    yield "operator to the API server's Service", Flow(operator, Host("10.96.0.1"), 443)
    for name, pod in (("control", control), ("runtime", runtime), ("worker", worker), ("operator", operator)):
        yield f"the kubelet probes {name}", Flow(KUBELET, pod, 8080)
    yield "a port-forward reaches runtime", Flow(KUBELET, runtime, 7444)


def journals_pass(release: str, namespace: str) -> Iterator[Named]:
    """Yields the connections to the Redis of journals that a release with one needs."""
    yield "runtime to journals", Flow(role("runtime", release, namespace), role("journals", release, namespace), REDIS)
    yield "the kubelet probes journals", Flow(KUBELET, role("journals", release, namespace), REDIS)


def journals_must_not_pass(release: str, namespace: str) -> Iterator[Named]:
    """Yields the connections to the Redis of journals, and from it, that must be refused."""
    journals = role("journals", release, namespace)
    for other in ("control", "worker", "operator", "gateway", "test", "redis"):
        yield f"{other} to journals", Flow(role(other, release, namespace), journals, REDIS)
    yield "another release's runtime to journals", Flow(role("runtime", "other", namespace), journals, REDIS)
    yield "a runtime of another namespace to journals", Flow(role("runtime", release, "elsewhere"), journals, REDIS)
    client = Pod(namespace, {"tartlet.dev/client": "true"}, ip="10.200.0.20")
    yield "a client to journals", Flow(client, journals, REDIS)
    yield "a stranger to journals", Flow(Pod(namespace, {"app": "web"}, ip="10.200.0.30"), journals, REDIS)
    yield "the world to journals", Flow(Host(WORLD), journals, REDIS)
    yield "journals to the world", Flow(journals, Host(WORLD), REDIS)
    yield "journals ask DNS", Flow(journals, DNS, 53, "UDP")
    yield "journals dial runtime", Flow(journals, role("runtime", release, namespace), 7444)


def must_not_pass(release: str, namespace: str) -> Iterator[Named]:
    """Yields the connections that must be refused; each is a way in or a way out."""
    control, runtime, worker, operator = (
        role(r, release, namespace) for r in ("control", "runtime", "worker", "operator")
    )
    other_worker = role("worker", release, namespace)
    stranger = Pod(namespace, {"app": "web"}, ip="10.200.0.30")
    far_client = Pod("elsewhere", {"tartlet.dev/client": "true"}, ip="10.200.1.20")
    client = Pod(namespace, {"tartlet.dev/client": "true"}, ip="10.200.0.20")
    world = Host(WORLD)
    yield "a client to control", Flow(client, control, 7443)
    yield "a client to a worker", Flow(client, worker, 7443)
    yield "a gateway to control", Flow(role("gateway", release, namespace), control, 7443)
    yield "helm test to control", Flow(role("test", release, namespace), control, 7443)
    yield "a stranger to control", Flow(stranger, control, 7443)
    yield "a stranger to runtime", Flow(stranger, runtime, 7444)
    yield "a client of another namespace", Flow(far_client, runtime, 7444)
    yield "a pod of another namespace that poses as a worker", Flow(role("worker", "x", "elsewhere"), control, 7443)
    yield "a pod of another namespace that poses as runtime", Flow(role("runtime", release, "elsewhere"), control, 7443)
    yield "another release's runtime to control", Flow(role("runtime", "other", "elsewhere"), control, 7443)
    yield "another release's operator to control", Flow(role("operator", "other", namespace), control, 7443)
    for name, pod in (("control", control), ("runtime", runtime), ("worker", worker), ("operator", operator)):
        yield f"a stranger reads {name}'s metrics", Flow(stranger, pod, 8080)
        yield f"a client reads {name}'s metrics", Flow(client, pod, 8080)
        for reader, other in (("runtime", runtime), ("worker", worker), ("operator", operator)):
            yield f"{reader} reads {name}'s metrics", Flow(other, pod, 8080)
        yield f"the world to {name}", Flow(world, pod, 8080)
        yield f"{name} to the world over HTTP", Flow(pod, world, 80)
        yield f"{name} to the metadata service", Flow(pod, Host(METADATA_SERVICE), 80)
        yield f"{name} to somebody else's pod", Flow(pod, stranger, 8000)
        yield f"{name} asks another DNS", Flow(pod, Host("8.8.8.8"), 53, "UDP")
        yield f"{name} to a node's kubelet", Flow(pod, Host("10.89.0.3"), 10250)
    for name, pod in (("control", control), ("runtime", runtime), ("worker", worker)):
        yield f"{name} to the world over HTTPS", Flow(pod, world, 443)
        yield f"{name} to the API server", Flow(pod, Host(API_SERVER), 6443)
        yield f"{name} to the API server's Service", Flow(pod, Host("10.96.0.1"), 443)
    yield "control dials runtime", Flow(control, runtime, 7444)
    yield "control dials a worker", Flow(control, worker, 7443)
    yield "control asks DNS, though it dials nobody", Flow(control, DNS, 53, "UDP")
    yield "runtime to a worker", Flow(runtime, worker, 7443)
    yield "a worker to runtime", Flow(worker, runtime, 7444)
    yield "a worker to another worker", Flow(worker, other_worker, 7443)
    yield "operator to a worker", Flow(operator, worker, 7443)
