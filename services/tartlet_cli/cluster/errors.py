"""The errors between the command line and a cluster.

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
    "no operator has looked at it yet: an operator watches its own namespace, or those of operator.namespaces, while a "
    "pod of its Deployment runs"
)
"""The reason shown for an object without a status, as in a namespace that no operator watches."""


class PackageMissing(InvalidConfig):
    """A package of the extra `kube` isn't installed."""

    message = "this command needs the Python package {package!r}, which is not installed"
    remedy = "Run `make setup`, or install Tartlet with its extra for Kubernetes: pip install 'tartlet[kube]'."


class ClusterUnknown(InvalidConfig):
    """No usable kubeconfig names a cluster."""

    message = "no cluster is configured: {detail}"
    remedy = "Give --kubeconfig FILE or $KUBECONFIG, and --context NAME; `kubectl config get-contexts` lists contexts."


class ClusterUnreachable(Unavailable):
    """The API server doesn't answer."""

    message = "the API server at {server} can't be reached: {detail}"
    remedy = "Check --context, --kubeconfig and the network; `kubectl cluster-info` asks the same server."


class ClusterFailed(Unavailable):
    """The API server answered with a failure of its own."""

    message = "the API server could not {action}: {detail}"
    remedy = "Try again shortly; `kubectl get --raw /readyz?verbose` shows the API server's health."


class LoginRefused(PermissionDenied):
    """The credentials are missing or have expired."""

    message = "the API server accepts no login to {action}: {detail}"
    remedy = "Log in again, or choose other credentials with --context or --kubeconfig."


_ROLE = (
    "Ask for the release's {role} role: kubectl -n {namespace} create rolebinding NAME --user USER "
    "--clusterrole tartlet:NAMESPACE:RELEASE:{role} (the cluster's `edit` and `admin` include it)."
)
_DENIED = re.compile(r'cannot (?P<verb>\w+) resource .* in the namespace "(?P<namespace>[^"]+)"')


class Forbidden(PermissionDenied):
    """RBAC forbids the action."""

    message = "you may not {action}: {detail}"
    remedy = _ROLE.format(role="editor", namespace="NAMESPACE")

    def __init__(self, *, group: str = "", **fields: Any) -> None:
        """Choose the remedy: the viewer role for reading, the editor role for changes, an administrator for CRDs."""
        super().__init__(**fields)
        denied = _DENIED.search(str(fields.get("detail", "")))
        if denied:
            looks = group == _KINDS and denied["verb"] in ("get", "list", "watch")
            self.remedy = _ROLE.format(role="viewer" if looks else "editor", namespace=denied["namespace"])
        if group == _DEFINITIONS:
            self.remedy = (
                "Kinds belong to the whole cluster: ask a cluster administrator to install them, or choose an "
                "administrator's --context. A cluster with a release of Tartlet has its kinds already."
            )


class NotThere(InvalidArgument):
    """The object, or its namespace, doesn't exist."""

    message = "can't {action}: {detail}"
    remedy = "Check the name, --namespace and --context."


class IdentityMissing(NotThere):
    """A release lacks the Secret with its clients' certificate."""

    message = "release {release} in namespace {namespace} lacks its certificates: there is no secret {name}"
    remedy = (
        "`helm upgrade` makes them, unless certificates.provider leaves that to cert-manager (`kubectl get "
        "certificate` shows why it has not made them) or to you."
    )


class KindUnknown(InvalidArgument):
    """The cluster lacks Tartlet's kinds."""

    message = "can't {action}: the cluster doesn't know Tartlet's kinds (tartlet.dev/v1alpha1)"
    remedy = "Install Tartlet (helm install tartlet charts/tartlet), or its kinds alone: tartlet crds apply."


class ManifestRefused(InvalidArgument):
    """The API server found the manifest invalid."""

    message = "the API server refused to {action}:\n{detail}"
    remedy = "Correct the fields above, then apply again."


class FieldConflict(InvalidArgument):
    """Server-side apply would change fields of another field manager."""

    message = "can't {action}: other field managers own fields that would change:\n{detail}"
    remedy = "Change these fields through their manager, or overwrite them with --force-conflicts."


class TooLargeForObjects(SourceTooLarge):
    """Neither an Inferlet nor a ConfigMap can hold the program."""

    message = "the program has {size} bytes; a Kubernetes object holds at most {limit}"
    remedy = "Put it on a web server, and apply an Inferlet with spec.source.url and its digest."


class InferletRefused(InvalidSource):
    """A runtime has checked the program and refused it."""

    message = "inferlet {name} is not Ready: {reason}: {detail}"
    remedy = "Correct the program and apply it again."


class InferletNotReady(Unavailable):
    """The Inferlet was not Ready in time; its condition says why."""

    message = "inferlet {name} is not Ready after {waited_s} s: {reason}: {detail}"
    remedy = "The Inferlet stays applied: watch it with `kubectl tartlet status`, or wait longer with --timeout."


class ReleaseNotFound(InvalidArgument):
    """The namespace has no release, or none of the given name."""

    message = "no release of Tartlet{named} in namespace {namespace}{others}"
    remedy = (
        "Give --namespace and --release; `helm list -A` lists releases, helm install tartlet charts/tartlet makes one."
    )


class ReleaseAmbiguous(InvalidArgument):
    """The namespace has several releases, and none was chosen."""

    message = "namespace {namespace} has several releases of Tartlet: {names}"
    remedy = "Choose one with --release."


class RuntimeNotReady(Unavailable):
    """The release exists, but no runtime of it takes programs."""

    message = "no runtime of release {release} is ready in namespace {namespace}: {detail}"
    remedy = (
        "Wait for it: kubectl -n {namespace} rollout status deploy/{name}; the pods' events and logs give the reason."
    )

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.remedy = type(self).remedy.format(**fields)  # the remedy names the objects to look at


class PortForwardFailed(Unavailable):
    """The connection through the API server to the runtime's pod could not be made, or ended."""

    message = "the port-forward to pod {pod} in namespace {namespace} broke: {detail}"
    remedy = (
        "Check that the pod still exists (kubectl get pod), then run the command again. For programs that must outlive "
        "their client, use tartlet apply and an InferletRun."
    )


class RuntimeUnreachable(Unavailable):
    """The port-forward works, but the runtime at its end doesn't answer properly."""

    message = "the runtime in pod {pod} of namespace {namespace} doesn't answer: {detail}"
    remedy = (
        "Look into its log (kubectl logs). After a renewal of certificates, a pod takes a minute to load its new one."
    )


class RunNotStarted(InvalidArgument):
    """The run has not started, so there is no output yet."""

    message = "run {name} has not been launched yet: {reason}: {detail}"
    remedy = "Wait for the start with --follow; `kubectl describe inferletrun` shows more."


class RunNotEnded(Unavailable):
    """The run has not ended in time; its condition says how it stands."""

    message = "run {name} has not ended after {waited_s} s: {reason}: {detail}"
    remedy = "Wait longer with --timeout; `kubectl tartlet status` shows what the run waits for."


class CrdOwned(InvalidArgument):
    """A Helm release owns the definition, and would restore its own at its next upgrade."""

    message = "{name} belongs to Helm release {release} in namespace {namespace}"
    remedy = (
        "Upgrade that release (helm upgrade), which upgrades its CRDs too. If the release is gone (helm ls -A), or to "
        "overwrite its CRDs anyway, give --force."
    )


def from_status(code: int, body: bytes | str, action: str) -> TartletError:
    """Turn a refusal of the API server into a typed error that keeps the server's message.

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
    """Parse a `Status` object; other text becomes its message."""
    text = body.decode(errors="replace") if isinstance(body, bytes) else body
    try:
        status = json.loads(text)
    except ValueError:
        return {"message": text.strip()[:2000]}
    return status if isinstance(status, dict) else {"message": text.strip()[:2000]}


def told(causes: list[dict[str, Any]]) -> str:
    """Write each cause on a line of its own, after its field; repeated causes appear once.

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
