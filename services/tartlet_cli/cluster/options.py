"""Options of the commands that talk to a cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Target:
    """Which cluster, namespace and release; "" is the default: the configuration's own, and the only one there is."""

    namespace: str = ""
    context: str = ""
    kubeconfig: str = ""
    release: str = ""


def target(options: dict[str, Any]) -> Target:
    """What these functions have put among a command's options; they are taken out."""
    return Target(**{name: options.pop(name, None) or "" for name in Target.__slots__})


def config_options(f: F) -> F:
    """`--context`, `--kubeconfig`: which cluster."""
    for option in (
        click.option("--kubeconfig", metavar="FILE", help="Configuration. Default: $KUBECONFIG, else ~/.kube/config."),
        click.option("--context", "--kube-context", "context", metavar="NAME", help="Context. Default: the current."),
    ):
        f = option(f)
    return f


def cluster_options(f: F) -> F:
    """`--namespace`, and `config_options`."""
    return click.option("-n", "--namespace", metavar="NAME", help="Namespace. Default: the context's.")(
        config_options(f)
    )


def release_option(f: F) -> F:
    """`--release`."""
    return click.option("--release", metavar="NAME", help="Helm release. Default: the namespace's only one.")(f)
