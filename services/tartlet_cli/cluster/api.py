"""Talks to a Kubernetes API server: JSON in and out, typed errors, server-side apply.

The package `kubernetes` provides kubeconfigs with their logins, and connections with their proxies and certificates.
Requests are plain HTTP, so that a refusal keeps the server's whole answer.
"""

from __future__ import annotations

import json
import os
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from tartlet_cli.cluster.errors import ClusterUnknown, ClusterUnreachable, NotThere, PackageMissing, from_status
from tartlet_cli.cluster.options import Target
from tartlet_common.yaml_json import dumps

Object = dict[str, Any]

FIELD_MANAGER: Final = "tartlet-cli"
CONNECT_S: Final = 10.0
READ_S: Final = 30.0

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """A kind of object, and its paths in the API."""

    group: str
    plural: str
    singular: str

    def path(self, namespace: str = "", name: str = "") -> str:
        """Return the path of one object, or of all objects of the kind."""
        quoted = [urllib.parse.quote(part, safe="") for part in (namespace, self.plural, name)]
        within = f"namespaces/{quoted[0]}/" if namespace else ""
        return f"/{self.group}/{within}{quoted[1]}" + (f"/{quoted[2]}" if name else "")


INFERLETS: Final = ResourceKind("apis/tartlet.dev/v1alpha1", "inferlets", "inferlet")
RUNS: Final = ResourceKind("apis/tartlet.dev/v1alpha1", "inferletruns", "inferletrun")
POOLS: Final = ResourceKind("apis/tartlet.dev/v1alpha1", "enginepools", "enginepool")
CRDS: Final = ResourceKind("apis/apiextensions.k8s.io/v1", "customresourcedefinitions", "customresourcedefinition")
CONFIG_MAPS: Final = ResourceKind("api/v1", "configmaps", "configmap")
NAMESPACES: Final = ResourceKind("api/v1", "namespaces", "namespace")
PODS: Final = ResourceKind("api/v1", "pods", "pod")
SECRETS: Final = ResourceKind("api/v1", "secrets", "secret")
SERVICES: Final = ResourceKind("api/v1", "services", "service")


@dataclass(frozen=True, slots=True)
class Applied:
    """An object after it was applied."""

    object: Object
    outcome: str  # "created", "configured" or "unchanged"


class Cluster:
    """A connection to an API server; it blocks, and may be used by several threads."""

    def __init__(self, client: Any, namespace: str) -> None:
        self.namespace = namespace
        self.configuration = client.configuration
        self._client = client
        self._pool = client.rest_client.pool_manager

    @classmethod
    def connect(cls, target: Target) -> Self:
        """Connect to the cluster that the options and the environment name.

        Raises:
            PackageMissing: the extra `kube` isn't installed.
            ClusterUnknown: there is no usable kubeconfig.
        """
        try:
            from kubernetes import config
            from kubernetes.client import ApiClient, Configuration
        except ImportError as e:
            raise PackageMissing(package="kubernetes") from e
        import yaml

        named = target.kubeconfig or os.environ.get("KUBECONFIG", "") or str(Path.home() / ".kube" / "config")
        try:
            if not any(Path(p).exists() for p in named.split(os.pathsep)):
                return cls._from_pod(target, config, ApiClient, Configuration, named)
            client = config.new_client_from_config(config_file=named, context=target.context or None)
            contexts, active = config.list_kube_config_contexts(config_file=named)
        except config.ConfigException as e:
            raise ClusterUnknown(detail=str(e)) from e
        except (OSError, yaml.YAMLError, TypeError, KeyError) as e:
            raise ClusterUnknown(detail=f"{named} can't be read: {e}") from e
        chosen = next((c for c in contexts if c["name"] == target.context), active)
        return cls(client, target.namespace or chosen["context"].get("namespace") or "default")

    @classmethod
    def _from_pod(cls, target: Target, config: Any, client: Any, configuration: Any, named: str) -> Self:
        """Connect to the cluster whose pod this process runs in."""
        if target.context or target.kubeconfig or not _SERVICE_ACCOUNT.is_dir():
            raise ClusterUnknown(detail=f"there is no {named}")
        settings = configuration()
        config.load_incluster_config(client_configuration=settings)
        own = (_SERVICE_ACCOUNT / "namespace").read_text().strip()
        return cls(client(settings), target.namespace or own)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.clear()

    @property
    def server(self) -> str:
        """The API server's address."""
        return str(self.configuration.host)

    def login(self) -> dict[str, str]:
        """Return the headers of the login; an expired token is renewed."""
        try:
            settings = self.configuration.auth_settings()
        except Exception as e:  # a login plugin is foreign code, and may raise any error
            raise ClusterUnknown(detail=f"the login of this context failed: {e}") from e
        bearer = settings.get("BearerToken")
        return {bearer["key"]: bearer["value"]} if bearer and bearer.get("value") else {}

    def request(
        self,
        method: str,
        path: str,
        action: str,
        body: Object | None = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> tuple[int, Object]:
        """Make a request; return status and body of an answer that isn't an error.

        Args:
            method: the HTTP method.
            path: the path, with its leading slash.
            action: names the action in errors: "list pods in e2e".
            body: sent as JSON.
            query: the query parameters.
            content_type: the body's content type.

        Raises:
            ClusterUnreachable: the server doesn't answer in time.
            TartletError: the server refused; see `from_status`.
        """
        from urllib3 import Timeout
        from urllib3.exceptions import HTTPError

        url = self.server + path + ("?" + urllib.parse.urlencode(query) if query else "")
        headers = {"Accept": "application/json", "User-Agent": FIELD_MANAGER, **self.login()}
        data = None
        if body is not None:
            data, headers["Content-Type"] = dumps(body), content_type
        timeout = Timeout(connect=CONNECT_S, read=READ_S)
        try:
            answer = self._pool.request(method, url, body=data, headers=headers, timeout=timeout, retries=False)
        except HTTPError as e:
            raise ClusterUnreachable(server=self.server, detail=_innermost(e)) from e
        if answer.status >= 400:
            raise from_status(answer.status, answer.data, action)
        found = json.loads(answer.data)
        assert isinstance(found, dict)
        return answer.status, found

    def get(self, kind: ResourceKind, name: str, namespace: str = "") -> Object:
        """Return an object.

        Raises:
            NotThere: the object doesn't exist.
        """
        return self.request("GET", kind.path(namespace, name), f"read {kind.singular} {name}")[1]

    def find(self, kind: ResourceKind, name: str, namespace: str = "") -> Object | None:
        """Return an object, or None if it doesn't exist."""
        try:
            return self.get(kind, name, namespace)
        except NotThere:
            return None

    def list(self, kind: ResourceKind, namespace: str, labels: str = "") -> list[Object]:
        """List a namespace's objects of a kind."""
        query = {"labelSelector": labels} if labels else None
        items = self.request("GET", kind.path(namespace), f"list {kind.plural} in {namespace}", query=query)[1]["items"]
        return list(items)

    def apply(
        self, kind: ResourceKind, manifest: Object, namespace: str = "", *, force: bool = False, dry_run: bool = False
    ) -> Applied:
        """Apply a manifest on the server: its fields are set, other managers' fields stay.

        Raises:
            FieldConflict: another manager set a field to another value, and `force` isn't given.
            ManifestRefused: the manifest is invalid.
        """
        name = manifest["metadata"]["name"]
        before = self.find(kind, name, namespace)
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        query |= {"force": "true"} if force else {}
        query |= {"dryRun": "All"} if dry_run else {}
        action = f"apply {kind.singular} {name}"
        patch = "application/apply-patch+yaml"
        status, made = self.request("PATCH", kind.path(namespace, name), action, manifest, query, patch)
        if status == 201 or before is None:
            return Applied(made, "created")
        same = made["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
        return Applied(made, "unchanged" if same else "configured")

    def delete(self, kind: ResourceKind, name: str, namespace: str = "") -> None:
        """Remove an object."""
        self.request("DELETE", kind.path(namespace, name), f"delete {kind.singular} {name}")


def _innermost(e: BaseException) -> str:
    """Return the text of the cause that urllib3's errors wrap."""
    while True:
        inner = getattr(e, "reason", None) or e.__cause__
        if not isinstance(inner, BaseException):
            text = str(e)
            return text.rpartition(": ")[2] if "HTTPSConnection" in text else text
        e = inner
