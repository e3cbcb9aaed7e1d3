"""`kubectl tartlet`: the plugin that kubectl runs as `kubectl-tartlet`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from tartlet_cli.cluster.options import Target, cluster_options, release_option, target
from tartlet_cli.commands.run import run_on_cluster
from tartlet_cli.console import exits
from tartlet_cli.console.calls import on_signals, with_opened
from tartlet_cli.console.entry import CommandGroup, enter
from tartlet_cli.console.options import Seconds, json_option, look_options

if TYPE_CHECKING:
    from tartlet_cli.cluster.api import Cluster, Object
    from tartlet_cli.cluster.errors import RunNotStarted

_LOOK_S = 0.5
_SILENCE_S = 0.3  # without --follow, `logs` takes a pause of this length for the end of the output
_MARK = 8  # characters by which a cut output is found in the newer one


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Use Tartlet on this cluster: show its state and runs' output, run programs.

    \b
    Examples:
      kubectl tartlet status
      kubectl tartlet logs -f my-run
      kubectl tartlet run my_program.py --prompt hello
      kubectl tartlet top -n production
    """  # noqa: D301 - \b is click's mark for a paragraph not to be wrapped


@cli.command()
@cluster_options
@json_option
def status(*, as_json: bool, **options: Any) -> None:
    """Show the pools, engines, inferlets and runs of a namespace.

    \b
    Examples:
      kubectl tartlet status
      kubectl tartlet status -n production --json
    """  # noqa: D301 - \b is click's mark for a paragraph not to be wrapped
    from tartlet_cli.cluster.api import INFERLETS, POOLS, RUNS, Cluster
    from tartlet_cli.kube import overview
    from tartlet_common.errors.registry import TartletError

    now = datetime.now(UTC)
    try:
        with Cluster.connect(target(options)) as cluster:
            pools, inferlets, runs = (cluster.list(kind, cluster.namespace) for kind in (POOLS, INFERLETS, RUNS))
            if not (pools or inferlets or runs):
                _check_namespace(cluster)
            if as_json:
                click.echo(json.dumps({"pools": pools, "inferlets": inferlets, "runs": runs}))
                return
            releases, amiss = _releases(cluster, now), [*_broken_pods(cluster), *_unmade_pools(cluster, pools)]
            click.echo(overview.text(releases, pools, inferlets, runs, now, amiss))
    except TartletError as e:
        raise exits.fail(e) from e


@cli.command()
@click.argument("run")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended, retries included.")
@cluster_options
@release_option
@json_option
def logs(run: str, *, follow: bool, as_json: bool, **options: Any) -> None:
    """Print the output of an InferletRun: from the runtime while it runs, later the last part, from its status.

    If you may not reach the runtime, or the runtime is in another namespace, the output comes from the status. With
    --follow the exit code is that of the run: 0 if it succeeded, 1 if its program failed, 3 if the system failed.

    \b
    Examples:
      kubectl tartlet logs my-run
      kubectl tartlet logs -f irun/my-run
    """  # noqa: D301 - \b is click's mark for a paragraph not to be wrapped
    from tartlet_common.errors.registry import TartletError

    try:
        code = _logs(run.rpartition("/")[2], target(options), follow=follow, as_json=as_json)
    except TartletError as e:
        raise exits.fail(e) from e
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise SystemExit(exits.INTERRUPTED) from None
    if follow and code:
        raise SystemExit(code)


@cli.command()
@click.argument("run")
@click.option(
    "--timeout",
    "timeout_s",
    type=Seconds(),
    help="Time to wait, such as 30s or 5m. Default: until the run has ended.",
)
@cluster_options
@json_option
def wait(run: str, timeout_s: float | None, *, as_json: bool, **options: Any) -> None:
    """Wait until an InferletRun has ended, retries included, and fail if the run failed.

    The exit code is 0 if the run succeeded, 1 if its program failed, and 3 if the system failed or the time is over.
    Unlike `kubectl wait --for=condition=Succeeded`, the command ends when the run fails.

    \b
    Examples:
      kubectl tartlet wait my-run
      kubectl tartlet wait irun/my-run --timeout 5m --json
    """  # noqa: D301 - \b is click's mark for a paragraph not to be wrapped
    from tartlet_cli.cluster.api import Cluster
    from tartlet_cli.kube import ends
    from tartlet_common.errors.registry import TartletError

    name = run.rpartition("/")[2]
    try:
        with Cluster.connect(target(options)) as cluster:
            ended = ends.wait(cluster, name, timeout_s, _LOOK_S)
    except TartletError as e:
        raise exits.fail(e) from e
    except KeyboardInterrupt:
        raise SystemExit(exits.INTERRUPTED) from None
    status: Object = ended.get("status") or {}
    code = ends.exit_of(status)
    if as_json:
        click.echo(json.dumps(status))
    elif code:
        ends.print_error(status)
    else:
        click.echo(f"inferletrun.tartlet.dev/{name} succeeded")
    if code:
        raise SystemExit(code)


@cli.command()
@look_options
@cluster_options
@release_option
@json_option
def top(interval: float, *, once: bool, as_json: bool, **options: Any) -> None:
    """Watch programs, pools and engines, as `tartlet top` does; Ctrl-C ends it.

    \b
    Examples:
      kubectl tartlet top
      kubectl tartlet top --once --json
    """  # noqa: D301 - \b is click's mark for a paragraph not to be wrapped
    from tartlet_cli.cluster.client import cluster_client
    from tartlet_cli.commands.top import watch

    at = target(options)
    with_opened(lambda: cluster_client(at), lambda client: watch(client, interval, once=once, as_json=as_json))


cli.add_command(run_on_cluster())


def main() -> None:
    """Run the plugin."""
    enter(cli, "kubectl tartlet")


def _check_namespace(cluster: Cluster) -> None:
    """Check that the namespace exists: the API server lists a missing namespace like an empty one.

    Raises:
        NotThere: there is no such namespace.
    """
    from tartlet_cli.cluster.api import NAMESPACES
    from tartlet_cli.cluster.errors import Forbidden

    with contextlib.suppress(Forbidden):  # few users may read namespaces
        cluster.get(NAMESPACES, cluster.namespace)


def _releases(cluster: Cluster, now: datetime) -> list[tuple[str, ...]] | None:
    """Return name, ready runtimes and age of each release; None if the user may not read Services, as viewers."""
    from tartlet_cli.cluster.api import PODS, SERVICES
    from tartlet_cli.cluster.errors import Forbidden
    from tartlet_cli.cluster.release import INSTANCE, RUNTIMES, state
    from tartlet_cli.kube.overview import since

    try:
        services = cluster.list(SERVICES, cluster.namespace, RUNTIMES)
        pods = cluster.list(PODS, cluster.namespace, RUNTIMES)
    except Forbidden:
        return None
    rows: list[tuple[str, ...]] = []
    for service in services:
        name = service["metadata"]["labels"][INSTANCE]
        states = [state(pod) for pod in pods if pod["metadata"]["labels"].get(INSTANCE) == name]
        others = "; ".join(sorted({s.partition(" (")[0] for s in states if s != "ready"}))
        told = f"{states.count('ready')} ready" + (f", else {others}" if others else "")
        rows.append((name, told, since(service["metadata"]["creationTimestamp"], now)))
    return rows


def _broken_pods(cluster: Cluster) -> list[str]:
    """Return what keeps pods of releases from running, one line a pod; nothing for a user who may not read pods.

    Pools explain their own pods.
    """
    from tartlet_cli.cluster.api import PODS
    from tartlet_cli.cluster.errors import Forbidden
    from tartlet_cli.cluster.release import trouble

    try:
        pods = cluster.list(PODS, cluster.namespace, "app.kubernetes.io/name=tartlet")
    except Forbidden:
        return []
    others = [pod for pod in pods if "tartlet.dev/pool" not in pod["metadata"]["labels"]]
    return [f"pod/{pod['metadata']['name']}: {why}" for pod in others if (why := trouble(pod))]


def _unmade_pools(cluster: Cluster, pools: list[Object]) -> list[str]:
    """Return the pools of releases' values that aren't as the values say; nothing for who may not read ConfigMaps."""
    from tartlet_cli.cluster.api import CONFIG_MAPS
    from tartlet_cli.cluster.errors import Forbidden
    from tartlet_cli.kube import overview

    try:
        labels = "app.kubernetes.io/name=tartlet,app.kubernetes.io/component=pool"
        return overview.unmade(cluster.list(CONFIG_MAPS, cluster.namespace, labels), pools)
    except Forbidden:
        return []


def _logs(name: str, at: Target, *, follow: bool, as_json: bool) -> int:
    """Attach to each of the run's programs in turn; at the end print the rest of the output that the status keeps.

    If the user may not attach, or the namespace has no runtime, print the status's output as it grows.

    Returns:
        The exit code of the run if it has ended, else 0.
    """
    from tartlet_cli.cluster.api import RUNS, Cluster
    from tartlet_cli.cluster.errors import Forbidden, ReleaseNotFound
    from tartlet_cli.kube import ends
    from tartlet_common.errors.registry import UnknownProgram

    seen = last = ""
    waits = _Waits()
    shown: tuple[str, str] | None = None  # a program, and the part of its output in the status that was printed
    with Cluster.connect(at) as cluster:
        while True:
            run = cluster.get(RUNS, name, cluster.namespace)
            status = run.get("status") or {}
            program, output = str(status.get("programId") or ""), str(status.get("output") or "")
            if program and last and program != last:
                sys.stderr.write(f"[attempt {status.get('attempts', 0)} begins, as program {program}]\n")
            last = program or last
            printed = shown[1] if shown is not None and shown[0] == program else ""
            if status.get("phase") in ends.ENDED:
                if program != seen or not program:
                    _print_status(run, printed, as_json=as_json)
                return ends.exit_of(status)
            if program and shown is not None:
                _print_more(printed, output, as_json=as_json)
                shown = program, output
            elif program and program != seen:
                try:
                    _attach(program, at, follow=follow, as_json=as_json)
                    seen = program
                except (
                    Forbidden,
                    ReleaseNotFound,
                    UnknownProgram,
                ) as e:  # UnknownProgram: the runtime has forgotten the program
                    sys.stderr.write(f"[as the run's status shows it, some seconds late; {e}]\n")
                    _print_more("", output, as_json=as_json)
                    shown = program, output
            if not program:
                waits.look(run, follow=follow)
            if not follow:
                if as_json and shown is not None:
                    click.echo(json.dumps(status))
                return 0
            time.sleep(_LOOK_S)


class _Waits:
    """Prints once why a followed run has not begun, if the reason still holds at the next look."""

    def __init__(self) -> None:
        self._before, self._told = "", ""

    def look(self, run: Object, *, follow: bool) -> None:
        why = _not_started(run)
        if not follow:
            raise why
        before, self._before = self._before, str(why)
        if before == self._before != self._told:
            self._told = before
            sys.stderr.write(f"[{before}]\n")


def _print_more(before: str, output: str, *, as_json: bool) -> None:
    """Print the part of a status's output that is new; with JSON, the end prints the whole status instead."""
    if not as_json:
        click.echo(grown(before, output), nl=False)


def grown(before: str, now: str) -> str:
    """Return the new part of an output whose start may have been cut since.

    Example:
        >>> grown("one ", "one two "), grown("one two three ", "two three four ")
        ('two ', 'four ')
    """
    if now.startswith(before):
        return now[len(before) :]
    start = now[:_MARK]
    at = before.find(start)
    while at >= 0 and not now.startswith(before[at:]):
        at = before.find(start, at + 1)
    return now[len(before) - at :] if at >= 0 else now


def _attach(program: str, at: Target, *, follow: bool, as_json: bool) -> None:
    from tartlet_cli.cluster.client import cluster_client
    from tartlet_cli.commands.programs import print_run

    async def work() -> None:
        on_signals(asyncio.Task.cancel)
        async with cluster_client(at) as client:
            run = await client.attach(program)
            await print_run(run, quiet=True, as_json=as_json, silence_s=None if follow else _SILENCE_S)

    asyncio.run(work())


def _print_status(run: Object, before: str, *, as_json: bool) -> None:
    """Print the output that an ended run's status keeps, without the part that was printed before."""
    from tartlet_cli.kube import ends

    status = run.get("status") or {}
    if as_json:
        click.echo(json.dumps(status))
        return
    if status.get("outputTruncated") and not before:
        sys.stderr.write("[the start of the output is not kept]\n")
    if status.get("outputKept") is False:
        sys.stderr.write("[spec.output is none: no output is kept]\n")
    output, result = grown(before, str(status.get("output") or "")), status.get("result")
    click.echo(output, nl=bool(output) and not output.endswith("\n"))
    if result is not None:
        click.echo(result)
    ends.print_error(status)


def _not_started(run: Object) -> RunNotStarted:
    """Return the reason why a run has not begun."""
    from tartlet_cli.cluster.errors import UNSEEN, UNSEEN_TOLD, RunNotStarted

    name, status = run["metadata"]["name"], run.get("status")
    if not status:
        return RunNotStarted(name=name, reason=UNSEEN, detail=UNSEEN_TOLD)
    conditions: list[Object] = status.get("conditions") or []
    waits = next((c for c in conditions if c["type"] in ("Running", "Succeeded")), {})
    return RunNotStarted(name=name, reason=waits.get("reason", "Pending"), detail=waits.get("message", ""))
