"""What can go wrong between the command line and a cluster.

They cross no process, so each has the number, and so the exit code, of the registered error that it is a case of.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from tartlet_common.errors.registry import (
    InvalidArgument,
    InvalidConfig,
    InvalidSource,
    PermissionDenied,
    SourceTooLarge,
    TartletError,
    Unavailable,
)

_DEFINITIONS: Final = "apiextensions.k8s.io"
_KINDS: Final = "tartlet.dev"

UNSEEN: Final = "NoStatus"
UNSEEN_TOLD: Final = (
    "no operator has looked at it yet: one watches its own namespace, or those of operator.namespaces, while a pod of "
    "its Deployment runs"
)
"""Why an object has no status at all, which is all that a namespace without an operator shows."""


class PackageMissing(InvalidConfig):
    """The extra isn't installed."""

    message = "the Python package {package!r} is not installed, which this command needs"
    remedy = "Run `make setup`, or install Tartlet with its extra for Kubernetes: pip install 'tartlet[kube]'."


class ClusterUnknown(InvalidConfig):
    """No configuration names a cluster."""

    message = "which cluster? {detail}"
    remedy = "Name one: --kubeconfig FILE or $KUBECONFIG, and --context NAME; `kubectl config get-contexts` lists them."


class ClusterUnreachable(Unavailable):
    """Nobody answers at the API server's address."""

    message = "the API server at {server} can't be reached: {detail}"
    remedy = "Check --context, --kubeconfig and the network; `kubectl cluster-info` asks the same server."


class ClusterFailed(Unavailable):
    """The API server answered that it can't."""

    message = "the API server could not {action}: {detail}"
    remedy = "Try again shortly; `kubectl get --raw /readyz?verbose` tells how the API server is."


class LoginRefused(PermissionDenied):
    """The credentials are none, or have expired."""

    message = "the API server doesn't know who asks to {action}: {detail}"
    remedy = "Log in again, or choose other credentials with --context or --kubeconfig."


_ROLE = (
    "Ask for the release's {role} role: kubectl -n {namespace} create rolebinding NAME --user USER "
    "--clusterrole tartlet:NAMESPACE:RELEASE:{role} (the cluster's `edit` and `admin` include it)."
)
_DENIED = re.compile(r'cannot (?P<verb>\w+) resource .* in the namespace "(?P<namespace>[^"]+)"')


class Forbidden(PermissionDenied):
    """RBAC says no."""

    message = "you may not {action}: {detail}"
    remedy = _ROLE.format(role="editor", namespace="NAMESPACE")

    def __init__(self, *, group: str = "", **fields: Any) -> None:
        """Who only looks needs no more than that; definitions of kinds, by their API group, are no namespace's."""
        super().__init__(**fields)
        denied = _DENIED.search(str(fields.get("detail", "")))
        if denied:
            looks = group == _KINDS and denied["verb"] in ("get", "list", "watch")
            self.remedy = _ROLE.format(role="viewer" if looks else "editor", namespace=denied["namespace"])
        if group == _DEFINITIONS:
            self.remedy = (
                "Kinds are the whole cluster's: ask a cluster administrator to do it, or choose an administrator's "
                "--context. Where a release is installed, its kinds are there already."
            )


class NotThere(InvalidArgument):
    """The object, or its namespace, doesn't exist."""

    message = "can't {action}: {detail}"
    remedy = "Check the name, --namespace and --context."


class IdentityMissing(NotThere):
    """A release without the Secret that its clients show."""

    message = "release {release} in namespace {namespace} lacks its certificates: there is no secret {name}"
    remedy = (
        "`helm upgrade` makes them, unless certificates.provider says that cert-manager or you do: `kubectl get "
        "certificate` shows what keeps it from them."
    )


class KindUnknown(InvalidArgument):
    """The API server has never heard of our kinds."""

    message = "can't {action}: the cluster doesn't know Tartlet's kinds (tartlet.dev/v1alpha1)"
    remedy = "Install Tartlet (helm install tartlet charts/tartlet), or its kinds alone: tartlet crds apply."


class ManifestRefused(InvalidArgument):
    """The API server validated it, and found it wrong."""

    message = "the API server refused to {action}:\n{detail}"
    remedy = "Correct each field that is named, and apply again."


class FieldConflict(InvalidArgument):
    """Server-side apply found other owners of what would change."""

    message = "can't {action}: others manage fields of it that would change:\n{detail}"
    remedy = "Change them where that is done, or take them over with --force-conflicts."


class TooLargeForObjects(SourceTooLarge):
    """Neither an Inferlet nor a ConfigMap can hold the program."""

    message = "the program has {size} bytes; an object of Kubernetes holds {limit}"
    remedy = "Put it on a web server, and apply an Inferlet with spec.source.url and its digest."


class InferletRefused(InvalidSource):
    """A runtime has looked at the program, and won't run it."""

    message = "inferlet {name} is not Ready: {reason}: {detail}"
    remedy = "Correct the program and apply it again."


class InferletNotReady(Unavailable):
    """It took too long; the condition says why."""

    message = "inferlet {name} is not Ready after {waited_s} s: {reason}: {detail}"
    remedy = "It stays applied: watch it with `kubectl tartlet status`, or wait longer with --timeout."


class ReleaseNotFound(InvalidArgument):
    """No release, or none of that name."""

    message = "no release of Tartlet{named} in namespace {namespace}{others}"
    remedy = (
        "Name its --namespace and --release; `helm list -A` lists them, helm install tartlet charts/tartlet makes one."
    )


class ReleaseAmbiguous(InvalidArgument):
    """Several, and none was named."""

    message = "namespace {namespace} has several releases of Tartlet: {names}"
    remedy = "Choose one with --release."


class RuntimeNotReady(Unavailable):
    """The release is there, and takes no programs."""

    message = "no runtime of release {release} is ready in namespace {namespace}: {detail}"
    remedy = (
        "Wait for it: kubectl -n {namespace} rollout status deploy/{name}; its pods' events and logs say what is wrong."
    )

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.remedy = type(self).remedy.format(**fields)  # it names what to look at


class PortForwardFailed(Unavailable):
    """The connection through the API server to the runtime's pod couldn't be made, or ended."""

    message = "the port-forward to pod {pod} in namespace {namespace} broke: {detail}"
    remedy = (
        "Look whether the pod is still there (kubectl get pod), and run it again. Programs that must outlive their "
        "client: tartlet apply, then an InferletRun."
    )


class RuntimeUnreachable(Unavailable):
    """The port-forward is there, and the runtime at its end doesn't answer as it should."""

    message = "the runtime in pod {pod} of namespace {namespace} doesn't answer: {detail}"
    remedy = (
        "Look into its log (kubectl logs). After certificates were renewed, a pod needs a minute to take its new one."
    )


class RunNotStarted(InvalidArgument):
    """It has no output yet."""

    message = "run {name} has not been launched yet: {reason}: {detail}"
    remedy = "Wait for it with --follow; `kubectl describe inferletrun` tells more."


class CrdOwned(InvalidArgument):
    """A Helm release would put its own back at its next upgrade."""

    message = "{name} belongs to Helm release {release} in namespace {namespace}"
    remedy = (
        "Upgrade that release (helm upgrade), which brings its CRDs along. If it is gone (helm ls -A), or to overwrite "
        "them all the same: --force."
    )


def from_status(code: int, body: bytes | str, action: str) -> TartletError:
    """The error that an answer of the API server is, with all that it says.

    Args:
        code: HTTP's.
        body: a `Status` as JSON, or text of whoever answered instead.
        action: what was tried, after "may not" or "can't".

    Example:
        >>> from_status(403, b'{"message": "secrets is forbidden"}', "read the secret").name
        'Forbidden'
    """
    status = parse(body)
    message = str(status.get("message") or "") or f"HTTP {code}"
    details = status.get("details")
    causes = details.get("causes") or [] if isinstance(details, Mapping) else []
    if code == 401:
        return LoginRefused(action=action, detail=message)
    if code == 403:
        group = str(details.get("group") or "") if isinstance(details, Mapping) else ""
        return Forbidden(action=action, detail=message, group=group)
    if code == 404:
        named = isinstance(details, Mapping) and details.get("name")
        return NotThere(action=action, detail=message) if named else KindUnknown(action=action)
    if code == 409 and any(cause.get("reason") == "FieldManagerConflict" for cause in causes):
        return FieldConflict(action=action, detail=told(causes))
    if code in (400, 409, 413, 415, 422):
        return ManifestRefused(action=action, detail=told(causes) or message)
    return ClusterFailed(action=action, detail=message)


def parse(body: bytes | str) -> dict[str, Any]:
    """A `Status`; text that is none becomes its message."""
    text = body.decode(errors="replace") if isinstance(body, bytes) else body
    try:
        status = json.loads(text)
    except ValueError:
        return {"message": text.strip()[:2000]}
    return status if isinstance(status, dict) else {"message": text.strip()[:2000]}


def told(causes: list[dict[str, Any]]) -> str:
    """Every cause on a line of its own, after its field; one that is told twice, once.

    Example:
        >>> told([{"field": "spec.pool", "message": "Invalid value: set at most one"}])
        '  spec.pool: Invalid value: set at most one'
    """
    lines = []
    for cause in causes:
        field, message = cause.get("field") or "", cause.get("message") or cause.get("reason") or ""
        field = "" if field == "<nil>" else field
        lines.append(f"  {field}: {message}" if field else f"  {message}")
    return "\n".join(dict.fromkeys(lines))
