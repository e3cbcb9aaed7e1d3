"""`tartlet crds apply`: installs the kinds of this release into a cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tartlet_cli.cluster.options import config_options, target
from tartlet_cli.console import exits

if TYPE_CHECKING:
    from tartlet_cli.cluster.api import Cluster, Object

HELM_RELEASE: Final = "meta.helm.sh/release-name"
HELM_NAMESPACE: Final = "meta.helm.sh/release-namespace"

_ESTABLISHED_S = 30.0
_LOOK_S = 0.1
_SHOWN = 12  # changes of one CRD that are listed


@click.group()
def crds() -> None:
    """Manage Tartlet's kinds (CustomResourceDefinitions) on a Kubernetes cluster.

    \b
    Examples:
      tartlet crds apply --dry-run     # what would change
      tartlet crds apply
    """  # noqa: D301 - \b is click's mark for a paragraph not to be wrapped


@crds.command()
@config_options
@click.option("--dry-run", is_flag=True, help="Print what would change, and change nothing.")
@click.option(
    "--force",
    "--force-conflicts",
    "force",
    is_flag=True,
    help="Overwrite kinds of a Helm release, and fields that other field managers own.",
)
def apply(*, dry_run: bool, force: bool, **options: Any) -> None:
    """Install or upgrade the kinds EnginePool, Inferlet and InferletRun, and print what changes.

    Objects of the kinds stay. Kinds that a Helm release installed are refused unless --force is given, because the
    release's next upgrade would put its own back.

    \b
    Examples:
      tartlet crds apply --dry-run
      tartlet crds apply --context production
    """  # noqa: D301 - \b is click's mark for a paragraph not to be wrapped
    from tartlet_cli.cluster.api import Cluster
    from tartlet_common.errors.registry import TartletError

    try:
        wanted = definitions()
        with Cluster.connect(target(options)) as cluster:
            for name, text in upgrade(cluster, wanted, dry_run=dry_run, force=force):
                click.echo(f"{name} {text}" + (" (dry run)" if dry_run else ""))
    except TartletError as e:
        raise exits.fail(e) from e
    except KeyboardInterrupt:
        raise SystemExit(exits.INTERRUPTED) from None


def definitions() -> list[Object]:
    """Return the CRDs of this release, from the package or from the checkout.

    Raises:
        PackageMissing: PyYAML isn't installed.
        InternalError: there are no CRDs in either place.
    """
    from tartlet_cli.cluster.errors import PackageMissing
    from tartlet_common.errors.registry import InternalError

    try:
        import yaml
    except ImportError as e:
        raise PackageMissing(package="yaml") from e
    here = Path(__file__)
    for directory in (here.parents[1] / "_crds", here.parents[3] / "crds"):
        files = sorted(directory.glob("tartlet.dev_*.yaml"))
        if files:
            return [yaml.safe_load(file.read_text(encoding="utf-8")) for file in files]
    raise InternalError(detail="the package has no CRDs")


def upgrade(cluster: Cluster, wanted: list[Object], *, dry_run: bool, force: bool) -> Iterator[tuple[str, str]]:
    """Apply the definitions and yield name and outcome of each; all are checked before the first is written.

    Raises:
        CrdOwned: a Helm release owns a definition, and `force` isn't given.
        FieldConflict: other managers own fields that would change, and `force` isn't given.
    """
    from tartlet_cli.cluster.api import CRDS

    found = {crd["metadata"]["name"]: cluster.find(CRDS, crd["metadata"]["name"]) for crd in wanted}
    planned = []
    for crd in wanted:
        name = crd["metadata"]["name"]
        would = cluster.apply(CRDS, crd, force=force or is_helms(found[name]), dry_run=True)
        changed = changes(_compared(found[name]), _compared(would.object))
        if changed and not force:
            check_owner(name, found[name])
        planned.append((crd, changed))
    for crd, changed in planned:
        name = crd["metadata"]["name"]
        if found[name] is not None and not changed:
            yield name, "unchanged"
            continue
        if not dry_run:
            cluster.apply(CRDS, crd, force=force)
            _established(cluster, name)
        yield name, "created" if found[name] is None else "changed" + told(changed)


def is_helms(found: Object | None) -> bool:
    """Whether a Helm release owns a definition."""
    return found is not None and HELM_RELEASE in (found["metadata"].get("annotations") or {})


def check_owner(name: str, found: Object | None) -> None:
    """Refuse a definition that Helm would restore.

    Raises:
        CrdOwned: a Helm release owns the definition.
    """
    from tartlet_cli.cluster.errors import CrdOwned

    if found is not None and is_helms(found):
        notes = found["metadata"]["annotations"]
        raise CrdOwned(name=name, release=notes[HELM_RELEASE], namespace=notes.get(HELM_NAMESPACE, "default"))


def changes(old: Any, new: Any, path: str = "") -> list[str]:
    """Return the paths at which two values differ; lists of named items are compared by name.

    Example:
        >>> changes({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3, "d": 4}})
        ['a.c', '+a.d']
    """
    if isinstance(old, dict) and isinstance(new, dict):
        out = []
        for key in [*old, *(k for k in new if k not in old)]:
            at = f"{path}.{key}" if path else str(key)
            if key not in new:
                out.append(f"-{at}")
            elif key not in old:
                out.append(f"+{at}")
            else:
                out += changes(old[key], new[key], at)
        return out
    if isinstance(old, list) and isinstance(new, list):
        before, after = _named(old), _named(new)
        if before is not None and after is not None:
            return changes(before, after, path)
    return [] if old == new else [path]


def told(changed: list[str]) -> str:
    """Write the first changes, one a line, and the number of the others."""
    lines = [f"\n  {path}" for path in changed[:_SHOWN]]
    more = len(changed) - _SHOWN
    return ":" + "".join(lines) + (f"\n  and {more} more" if more > 0 else "")


def _named(items: list[Any]) -> dict[str, Any] | None:
    if not all(isinstance(item, dict) and "name" in item for item in items):
        return None
    return {str(item["name"]): item for item in items}


def _compared(found: Object | None) -> dict[str, Any]:
    """Return the part of a definition that people set, without the parts that the server adds."""
    if found is None:
        return {}
    metadata = {key: found["metadata"].get(key) or {} for key in ("labels", "annotations")}
    return {"metadata": metadata, "spec": found["spec"]}


def _established(cluster: Cluster, name: str) -> None:
    """Wait until the API server serves the kind.

    Raises:
        ClusterFailed: the server doesn't serve it in time; the error gives the server's reason.
    """
    from tartlet_cli.cluster.api import CRDS
    from tartlet_cli.cluster.errors import ClusterFailed

    end = time.monotonic() + _ESTABLISHED_S
    while True:
        conditions = {c["type"]: c for c in (cluster.get(CRDS, name).get("status") or {}).get("conditions") or []}
        if conditions.get("Established", {}).get("status") == "True":
            return
        if time.monotonic() > end:
            detail = "; ".join(f"{c['type']}={c['status']}: {c.get('message', '')}" for c in conditions.values())
            raise ClusterFailed(action=f"serve {name}", detail=detail or "no condition")
        time.sleep(_LOOK_S)
