"""`tartlet apply`: stores a program as an Inferlet of a cluster."""

from __future__ import annotations

import dataclasses
import functools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tartlet_cli.cluster.options import Target, cluster_options, target
from tartlet_cli.console import exits
from tartlet_cli.console.options import Seconds

if TYPE_CHECKING:
    from tartlet_cli.cluster.api import Applied, Cluster, Object
    from tartlet_cli.kube.manifest import Manifest, NewInferlet

_LOOK_S = 0.25
_NOT_THE_SOURCE = 400  # errors with this number or a higher one are the system's, and may pass


@click.command()
@click.argument("file")
@click.option("--pool", metavar="NAME", default="", help="EnginePool whose model the program uses.")
@click.option("--model", metavar="NAME", default="", help="Model that the program uses, from any pool that serves it.")
@click.option("--name", metavar="NAME", default="", help="Name of the Inferlet. Default: the file's name.")
@click.option("--arg", "args", metavar="TEXT", multiple=True, help="Argument for runs that give none; may be repeated.")
@click.option("--description", metavar="TEXT", default="", help="A description for people.")
@cluster_options
@click.option("--dry-run", is_flag=True, help="Print the manifest without applying it; needs no cluster.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["yaml", "json"]),
    help="Print the manifest: after applying, as the cluster stored it.",
)
@click.option(
    "--wait", is_flag=True, help="Wait until the Inferlet is Ready: a runtime has checked it, and runs can use it."
)
@click.option(
    "--timeout",
    "timeout_s",
    type=Seconds(),
    default=60.0,
    show_default=True,
    help="Time that --wait waits.",
)
@click.option("--force-conflicts", is_flag=True, help="Overwrite fields that other field managers own.")
def apply(file: str, timeout_s: float, *, dry_run: bool, wait: bool, force_conflicts: bool, **options: Any) -> None:
    """Store a program (a .py file, a directory, an archive or a core .wasm module) on a cluster, as an Inferlet.

    The Inferlet holds the source; what is no text, or more than 512 KiB of it, goes into a ConfigMap beside it.
    Applying again replaces the program. The command uses server-side apply, as field manager `tartlet-cli`.

    \b
    Examples:
      tartlet apply my_program.py --pool demo --wait
      tartlet apply my_program.py --pool demo --name answer --arg=--prompt --arg "374+588="
      tartlet apply my_program.py --dry-run > inferlet.yaml
    """  # noqa: D301 - \b is click's mark for a paragraph not to be wrapped
    from tartlet_cli.kube import manifest
    from tartlet_common.errors.registry import InvalidSource, TartletError

    at, output = target(options), options.pop("output")
    try:
        program = _program(file, at.namespace, options)
        made = manifest.inferlet(program)
        if dry_run:
            all_made = [m for m in (manifest.config_map(program, made), made) if m is not None]
            _print(all_made, output or "yaml")
            if manifest.too_large_for_kubectl(all_made):
                click.echo("too large for `kubectl apply`: use `kubectl apply --server-side`", err=True)
            return
        say = functools.partial(click.echo, err=bool(output))  # with -o, standard output is for the manifest
        stored = _apply(at, program, say, wait_s=timeout_s if wait else None, force=force_conflicts)
        if output:
            _print([stored], output)
    except InvalidSource as e:
        if type(e) is not InvalidSource:  # the cluster's error, not one of the file
            raise exits.fail(e) from e
        raise click.BadParameter(str(e.fields["detail"]), param_hint="FILE") from e
    except TartletError as e:
        raise exits.fail(e) from e
    except KeyboardInterrupt:
        raise SystemExit(exits.INTERRUPTED) from None


def _program(file: str, namespace: str, options: dict[str, Any]) -> NewInferlet:
    from tartlet.model import Language, Source
    from tartlet_cli.kube.manifest import NewInferlet, check_name, name_of

    source = Source.from_file(file)
    name = check_name(options.pop("name") or name_of(file))
    wasm = source.language is Language.WASM
    return NewInferlet(name, namespace, source.data, wasm, Path(file).name, **options)


def _print(manifests: list[Manifest], output: str) -> None:
    from tartlet_cli.kube.manifest import to_json, to_yaml

    for each in manifests:
        each.get("metadata", {}).pop("managedFields", None)  # long, and not meant to be edited
    click.echo(to_yaml(manifests) if output == "yaml" else to_json(manifests), nl=False)


def _apply(
    at: Target, program: NewInferlet, say: Callable[[str], None], *, wait_s: float | None, force: bool
) -> Object:
    from tartlet_cli.cluster.api import Cluster
    from tartlet_cli.kube.manifest import SHOWN, inferlet

    with Cluster.connect(at) as cluster:
        program = dataclasses.replace(program, namespace=cluster.namespace)
        applied = store(cluster, program, inferlet(program), force=force)
        say(f"{SHOWN}/{program.name} {applied.outcome}")
        if wait_s is None:
            return applied.object
        ready = wait_ready(cluster, applied.object, wait_s)
        say(f"{SHOWN}/{program.name} ready")
        where = condition(ready, "Runnable")
        if where.get("status") == "False":
            say(f"it can't run yet: {where.get('reason')}: {where.get('message')}")
        return ready


def store(cluster: Cluster, program: NewInferlet, made: Manifest, *, force: bool = False) -> Applied:
    """Apply the Inferlet after the ConfigMap that it refers to; remove a ConfigMap that it no longer uses.

    Raises:
        TartletError: the API server refused one of them.
    """
    from tartlet_cli.cluster.api import CONFIG_MAPS, INFERLETS
    from tartlet_cli.cluster.errors import Forbidden
    from tartlet_cli.kube import manifest

    space = cluster.namespace
    before = cluster.find(INFERLETS, program.name, space)
    owner = before["metadata"]["uid"] if before else ""
    source = manifest.config_map(program, made, owner)
    if source is not None:
        cluster.apply(CONFIG_MAPS, source, space, force=force)
    applied = cluster.apply(INFERLETS, made, space, force=force)
    uid = applied.object["metadata"]["uid"]
    owned = manifest.config_map(program, made, uid)
    if owned is not None:
        if uid != owner:  # the owner's uid is known only now
            cluster.apply(CONFIG_MAPS, owned, space, force=force)
    elif before is not None and "configMap" in before["spec"]["source"]:
        name = manifest.config_map_name(program.name)
        try:
            if manifest.is_left_over(cluster.find(CONFIG_MAPS, name, space), uid):
                cluster.delete(CONFIG_MAPS, name, space)
        except Forbidden:  # the left-over does no harm, and goes with its Inferlet
            sys.stderr.write(f"configmap/{name} is no longer needed, and you may not delete it\n")
    return applied


def wait_ready(
    cluster: Cluster,
    applied: Object,
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Object:
    """Wait until the Inferlet's status describes this version and is Ready; return the Inferlet.

    Raises:
        InferletRefused: a runtime refused the program.
        InferletNotReady: the Inferlet was not Ready within `timeout_s`.
    """
    from tartlet_cli.cluster.api import INFERLETS
    from tartlet_cli.cluster.errors import UNSEEN, UNSEEN_TOLD, InferletNotReady, InferletRefused
    from tartlet_common.errors.registry import REGISTRY

    metadata = applied["metadata"]
    final = {cls.__name__ for number, cls in REGISTRY.items() if number < _NOT_THE_SOURCE and not cls.retryable}
    end = clock() + timeout_s
    while True:
        found = cluster.get(INFERLETS, metadata["name"], metadata["namespace"])
        ready = condition(found, "Ready")
        current = ready.get("observedGeneration", 0) >= metadata["generation"]
        if current and ready.get("status") == "True":
            return found
        told = {"name": metadata["name"], "reason": UNSEEN, "detail": UNSEEN_TOLD}
        if ready and current:
            told |= {"reason": ready["reason"], "detail": ready.get("message", "")}
            if ready["status"] == "False" and ready["reason"] in final:
                raise InferletRefused(**told)
        if clock() >= end:
            raise InferletNotReady(**told, waited_s=timeout_s)
        sleep(_LOOK_S)


def condition(found: Object, kind: str) -> dict[str, Any]:
    """Return a condition of an object's status, or {} if it has none of this type."""
    conditions = (found.get("status") or {}).get("conditions") or []
    return next((dict(c) for c in conditions if c["type"] == kind), {})
