"""Separates the options of `tartlet run` from the program's, and refuses combinations that exclude each other."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from tartlet_cli.cluster.options import Target, target
from tartlet_cli.console.options import PassingCommand, capabilities_of, durability_of
from tartlet_cli.console.recorded import Forking

NOT_ON_CLUSTER = ("server", "native", "config", "engine")
_NOT_ON_SERVER = ("config", "engine")
_NOT_NATIVE = {
    "interactive": "--interactive: with --native, the program itself reads standard input. To send messages, use three "
    "terminals: `tartlet serve`, `tartlet run --native --server local FILE`, `tartlet send ID TEXT`",
    "inferlet": "--inferlet: --native runs a file, not a program of the catalogue",
    "memory_mib": "--max-memory: this limit holds only in the sandbox, and --native runs outside of it",
}
_BEFORE_FILE = {"-n": "--namespace", "--context": "--kube-context"}
_MISTYPED = "tartlet.mistyped"
_ALIKE = 0.85  # similarity from which an option counts as mistyped; --max-tokens and --max-pages have 0.7


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of the command line."""

    file: str
    args: tuple[str, ...]
    model: str | None
    engine: str | None
    server: str | None
    native: bool
    interactive: bool
    seed: int | None
    quiet: bool
    as_json: bool
    durability: str
    config: Path | None
    inferlet: bool
    kube: Target | None
    limits: dict[str, Any]
    capabilities: Any = None  # what --allow-http and --allow-secret name
    forking: Forking | None = None


class RunCommand(PassingCommand):
    """Accepts kubectl's names of options as well if they stand before FILE; after FILE they go to the program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Replace kubectl's names by ours, and note options that may be mistyped."""
        takes_value = {o for p in self.params if isinstance(p, click.Option) and not p.is_flag for o in p.opts}
        at = 0
        while at < len(args) and args[at].startswith("-") and args[at] != "--":
            name, equals, value = args[at].partition("=")
            name = _BEFORE_FILE.get(name, name)
            args[at] = name + equals + value
            at += 2 if name in takes_value and not equals else 1
        ctx.meta[_MISTYPED] = _mistyped(args, {o for p in self.params for o in p.opts})
        return super().parse_args(ctx, args)


def chosen_options(
    ctx: click.Context, file: str, args: tuple[str, ...], options: dict[str, Any], forking: Forking | None = None
) -> RunOptions:
    """Return the options of a run, or of a fork, as they were given.

    Raises:
        click.UsageError: they exclude each other.
    """
    kube = target(options)
    if not options["kube"] and kube != Target():
        raise click.UsageError("--namespace, --release, --kube-context and --kubeconfig need --kube", ctx)
    check_options(ctx, options)
    tell_mistyped(ctx)
    limits = {
        "deadline_s": options["deadline_s"],
        "pages": options["max_pages"],
        "memory_bytes": options["memory_mib"] << 20,
    }
    return RunOptions(
        file=file,
        args=args,
        model=options["model"],
        engine=options["engine"],
        server=options["server"],
        native=options["native"],
        interactive=options["interactive"],
        seed=options["seed"],
        quiet=options["quiet"],
        as_json=options["as_json"],
        durability=durability_of(options),
        config=options["config"],
        inferlet=options["inferlet"],
        kube=kube if options["kube"] else None,
        limits=limits,
        capabilities=capabilities_of(options),
        forking=forking,
    )


def check_options(ctx: click.Context, options: dict[str, Any]) -> None:
    """Refuse options that would have no effect, unless they come from the environment.

    Raises:
        click.UsageError: for the first such option.
    """
    for name, why in _NOT_NATIVE.items() if options["native"] else ():
        if options[name]:
            raise click.UsageError(why, ctx)
    if not options["kube"]:
        _check_place(ctx, options)
        return
    for name in NOT_ON_CLUSTER:
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name} and --kube exclude each other", ctx)


def _check_place(ctx: click.Context, options: dict[str, Any]) -> None:
    """Refuse options that have no effect at the place where the program runs."""
    if options["server"] or options["inferlet"]:
        told = ctx.get_parameter_source("server") is ParameterSource.COMMANDLINE
        why = "--server" if told else "TARTLET_SERVER" if options["server"] else "--inferlet"
        for name in _NOT_ON_SERVER:
            if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                raise click.UsageError(f"--{name}: has no effect on a running server, which {why} chooses", ctx)
    elif options["model"] and options["engine"] == "fake":
        raise click.UsageError("--model: the fake engine has no model; leave out --model or --engine fake", ctx)


def tell_mistyped(ctx: click.Context) -> None:
    """Warn of options that went to the program and may not have been meant for it."""
    for name, alike in ctx.meta.get(_MISTYPED, ()):
        click.echo(f"{name} goes to the program; did you mean {alike}? If not, put {name} after `--`.", err=True)


def _mistyped(args: list[str], known: set[str]) -> list[tuple[str, str]]:
    """Return options before `--` that go to the program, each with an option of this command that is similar to it.

    Example:
        >>> _mistyped(["x.py", "--sed=7", "--max-tokens", "9", "--", "--seeds"], {"--seed", "--max-pages"})
        [('--sed', '--seed')]
    """
    end = args.index("--") if "--" in args else len(args)
    given = [arg.partition("=")[0] for arg in args[:end] if arg.startswith("--")]
    close = ((name, difflib.get_close_matches(name, known, n=1, cutoff=_ALIKE)) for name in given if name not in known)
    return [(name, alike[0]) for name, alike in close if alike]
