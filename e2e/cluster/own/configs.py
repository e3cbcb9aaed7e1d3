"""Configuration of the cluster's components, as pure functions of the paths of its files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.layout import COREDNS

NODE = "node1"
NODE_ADDRESS = "10.99.0.1"
API_PORT = 6443
ETCD_PORT = 2379
PODS = "10.88.64.0/20"
"""So many that no address is used twice in a run: who made a connection is told by it."""

PODS_GATEWAY = "10.88.77.1"
"""The node's address in the pods' network."""

SERVICES = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"
DNS_SERVICE = "10.96.0.10"
CGROUP = "tartlet-e2e"
DNS_IMAGE = f"localhost/tartlet-e2e-coredns:{COREDNS}-1"
"""Another number where its plugins change: the one of this name is taken if it is there."""
PAUSE_IMAGE = "localhost/tartlet-e2e-pause:1"

USERS = {
    "admin": ("admin", ["system:masters"]),
    "controller-manager": ("system:kube-controller-manager", []),
    "scheduler": ("system:kube-scheduler", []),
    "kubelet": (f"system:node:{NODE}", ["system:nodes"]),
    "proxy": ("system:kube-proxy", []),
}
"""Whom the API server knows by a token: user name and groups."""


@dataclass(frozen=True, slots=True)
class Component:
    """A process of the cluster."""

    name: str
    command: list[str]


def tokens_csv(tokens: dict[str, str]) -> str:
    """Returns the API server's token file; the keys of `tokens` are those of USERS."""
    lines = [f'{tokens[k]},{user},{k},"{",".join(groups)}"' for k, (user, groups) in USERS.items()]
    return "\n".join(lines) + "\n"


def kubeconfig(token: str, authority: Path) -> str:
    """Returns the kubeconfig of a client with this token."""
    server = f"https://{NODE_ADDRESS}:{API_PORT}"
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "e2e", "cluster": {"server": server, "certificate-authority": str(authority)}}],
            "users": [{"name": "e2e", "user": {"token": token}}],
            "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": "e2e"}}],
            "current-context": "e2e",
        }
    )


def containerd(store: Path, state: Path) -> str:
    """Returns the configuration of containerd 1.6 or later. Its store outlives the cluster, and so do its images."""
    return f"""version = 2
root = "{store}"
state = "/run/containerd"
oom_score = 0
disabled_plugins = [
  "io.containerd.internal.v1.opt",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.zfs",
]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{state / "cni"}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"""


def network() -> str:
    """Returns the pods' network: one bridge, without a route out of the cluster's namespace."""
    ipam = {
        "type": "host-local",
        "ranges": [[{"subnet": PODS, "gateway": PODS_GATEWAY}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": "/run/cni",
    }
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False, "hairpinMode": True, "ipam": ipam}
    plugins: list[dict[str, Any]] = [bridge, {"type": "portmap", "capabilities": {"portMappings": True}}]
    return json.dumps({"cniVersion": "0.4.0", "name": "e2e", "plugins": plugins})


def kubelet(state: Path) -> str:
    """Returns the kubelet's configuration; all pods' control groups are below one that `down` removes."""
    return yaml.safe_dump(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "0.0.0.0",  # noqa: S104 - of the cluster's own network namespace
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(state / "pki" / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{CGROUP}",
            "cgroupsPerQOS": True,
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,
            "failSwapOn": False,
            "clusterDNS": [DNS_SERVICE],
            "clusterDomain": "cluster.local",
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "registerNode": True,
            "resolvConf": str(state / "resolv.conf"),
            "syncFrequency": "5s",
        }
    )


def kube_proxy(state: Path) -> str:
    """Returns kube-proxy's configuration; it leaves conntrack's limits unchanged, because they hold for the machine."""
    none = {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"}
    return yaml.safe_dump(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(state / "proxy.kubeconfig")},
            "mode": "iptables",
            "clusterCIDR": PODS,
            "hostnameOverride": NODE,
            "conntrack": none,
        }
    )


def etcd(state: Path) -> Component:
    """Returns etcd's process, on loopback and without fsync: a test cluster's data need not survive the machine."""
    client, peer = f"http://127.0.0.1:{ETCD_PORT}", f"http://127.0.0.1:{ETCD_PORT + 1}"
    urls = [f"--listen-client-urls={client}", f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}"]
    peers = [f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}"]
    return Component("etcd", ["etcd", f"--data-dir={state / 'etcd'}", "--unsafe-no-fsync", *urls, *peers])


def api_server(binary: Path, state: Path) -> Component:
    """Returns the API server's process, with the authorizers and admission plugins that real clusters have."""
    pki = state / "pki"
    issuer = "https://kubernetes.default.svc"
    options = {
        "etcd-servers": f"http://127.0.0.1:{ETCD_PORT}",
        "secure-port": API_PORT,
        "bind-address": NODE_ADDRESS,
        "advertise-address": NODE_ADDRESS,
        "tls-cert-file": pki / "apiserver.crt",
        "tls-private-key-file": pki / "apiserver.key",
        "client-ca-file": pki / "ca.crt",
        "token-auth-file": state / "tokens.csv",
        "authorization-mode": "Node,RBAC",
        "service-account-issuer": issuer,
        "api-audiences": issuer,
        "service-account-signing-key-file": pki / "accounts.key",
        "service-account-key-file": pki / "accounts.key",
        "service-cluster-ip-range": SERVICES,
        "kubelet-client-certificate": pki / "kubelet-client.crt",
        "kubelet-client-key": pki / "kubelet-client.key",
        "kubelet-preferred-address-types": "InternalIP",
        "allow-privileged": "true",
        "enable-admission-plugins": "NodeRestriction",
    }
    return Component("apiserver", [str(binary), "kube-apiserver", *_flags(options)])


def controller_manager(binary: Path, state: Path) -> Component:
    """Returns the controller manager's process, with all of Kubernetes' controllers."""
    pki = state / "pki"
    options = {
        "kubeconfig": state / "controller-manager.kubeconfig",
        "service-account-private-key-file": pki / "accounts.key",
        "root-ca-file": pki / "ca.crt",
        "cluster-signing-cert-file": pki / "ca.crt",
        "cluster-signing-key-file": pki / "ca.key",
        "use-service-account-credentials": "true",
        "leader-elect": "false",
        "bind-address": "127.0.0.1",
    }
    return Component("controller-manager", [str(binary), "kube-controller-manager", *_flags(options)])


def scheduler(binary: Path, state: Path) -> Component:
    """Returns the scheduler's process."""
    options = {"kubeconfig": state / "scheduler.kubeconfig", "leader-elect": "false", "bind-address": "127.0.0.1"}
    return Component("scheduler", [str(binary), "kube-scheduler", *_flags(options)])


def node(binary: Path, state: Path) -> Component:
    """Returns the kubelet's process."""
    options = {
        "config": state / "kubelet.yaml",
        "kubeconfig": state / "kubelet.kubeconfig",
        "root-dir": state / "kubelet",
        "cert-dir": state / "kubelet-pki",
        "hostname-override": NODE,
        "node-ip": NODE_ADDRESS,
    }
    return Component("kubelet", [str(binary), "kubelet", *_flags(options)])


def proxy(binary: Path, state: Path) -> Component:
    """Returns kube-proxy's process."""
    return Component("proxy", [str(binary), "kube-proxy", f"--config={state / 'proxy.yaml'}"])


def _flags(options: dict[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in options.items()]
