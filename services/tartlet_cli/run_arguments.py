"""How `tartlet run` tells its own options from the program's."""

from __future__ import annotations

import difflib

import click

_BEFORE_FILE = {"-n": "--namespace", "--context": "--kube-context"}
_MISTYPED = "tartlet.mistyped"
_ALIKE = 0.85  # of two options; --max-tokens and --max-pages are 0.7


class RunCommand(click.Command):
    """Takes kubectl's own names of its options, too, where they stand before FILE: behind it they are the program's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put them in our words, and note what may be mistyped."""
        takes_value = {o for p in self.params if isinstance(p, click.Option) and not p.is_flag for o in p.opts}
        at = 0
        while at < len(args) and args[at].startswith("-") and args[at] != "--":
            name, equals, value = args[at].partition("=")
            name = _BEFORE_FILE.get(name, name)
            args[at] = name + equals + value
            at += 2 if name in takes_value and not equals else 1
        ctx.meta[_MISTYPED] = _mistyped(args, {o for p in self.params for o in p.opts})
        return super().parse_args(ctx, args)


def tell_mistyped(ctx: click.Context) -> None:
    """Warn of options that went to the program and may not have been meant for it."""
    for name, alike in ctx.meta.get(_MISTYPED, ()):
        click.echo(f"{name} goes to the program; did you mean {alike}? (Behind -- nobody asks.)", err=True)


def _mistyped(args: list[str], known: set[str]) -> list[tuple[str, str]]:
    """Options before a `--` that the program gets, each with the one of ours that it is much like.

    Example:
        >>> _mistyped(["x.py", "--sed=7", "--max-tokens", "9", "--", "--seeds"], {"--seed", "--max-pages"})
        [('--sed', '--seed')]
    """
    end = args.index("--") if "--" in args else len(args)
    given = [arg.partition("=")[0] for arg in args[:end] if arg.startswith("--")]
    close = ((name, difflib.get_close_matches(name, known, n=1, cutoff=_ALIKE)) for name in given if name not in known)
    return [(name, alike[0]) for name, alike in close if alike]
