"""Options of the commands that talk to a cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster, namespace and release to use; "" stands for the kubeconfig's default, or the only release."""

    namespace: str = ""
    context: str = ""
    kubeconfig: str = ""
    release: str = ""


def target(options: dict[str, Any]) -> Target:
    """Take the options that these functions add out of a command's options."""
    return Target(**{name: options.pop(name, None) or "" for name in Target.__slots__})


def config_options(f: F) -> F:
    """Add `--context` and `--kubeconfig`, which choose the cluster."""
    for option in (
        click.option("--kubeconfig", metavar="FILE", help="kubeconfig. Default: $KUBECONFIG, else ~/.kube/config."),
        click.option(
            "--context", "--kube-context", "context", metavar="NAME", help="Context. Default: the current one."
        ),
    ):
        f = option(f)
    return f


def cluster_options(f: F) -> F:
    """Add `--namespace`, and the options of `config_options`."""
    return click.option("-n", "--namespace", metavar="NAME", help="Namespace. Default: the context's.")(
        config_options(f)
    )


def release_option(f: F) -> F:
    """Add `--release`."""
    return click.option("--release", metavar="NAME", help="Helm release. Default: the only one in the namespace.")(f)
