"""`python -m e2e.cluster COMMAND`; see `_USAGE`."""

from __future__ import annotations

import signal
import subprocess
import sys
from types import FrameType

from e2e.cluster import session
from e2e.cluster.artifacts.requirements import Unfit
from e2e.cluster.layout import default_layout
from e2e.cluster.own.cluster import Failed
from e2e.cluster.provider import Own, choose
from e2e.cluster.turn import my_turn, with_turn

UNFIT = 3
"""The exit status of `check` where this machine can have no cluster."""

_USAGE = """usage: python -m e2e.cluster COMMAND
  check              tells whether this machine can have a cluster; if not, prints why in one line and exits with 3
  build              builds the components and the image, unless the cache has them
  up, down           brings the cluster up, takes it down
  test ARGUMENT...   brings it up if it isn't, runs pytest on its tests, brings it down if it wasn't up;
                     --all: the tests beyond the gate too
  turn COMMAND...    waits until no other run of the tests uses the cluster, then runs the command, whose own runs
                     and those of its children don't wait
  image              builds Tartlet's image, lets pods use it, and prints its name
  kubectl ARGUMENT...
  helm ARGUMENT...
  in COMMAND...      runs any other command in the cluster's network, such as tartlet or kubectl-tartlet
"""


def main(arguments: list[str]) -> int:
    """Runs the command that the first argument names and returns its exit status."""
    cluster = choose()
    match arguments:
        case ["check"]:
            try:
                cluster.ensure()
            except Unfit as e:
                print(e)
                return UNFIT
        case ["build"]:
            cluster.build()
        case ["up"]:
            cluster.up()
        case ["down"]:
            with my_turn(default_layout().cache, wait=False):
                cluster.down()
        case ["test", *rest]:
            return session.run(cluster, rest)
        case ["turn", *command] if command:
            with_turn(default_layout().cache, command)
        case ["image"]:
            print(cluster.image().name)
        case ["image-file" | "tools" as what] if isinstance(cluster, Own):  # used by `build`
            {"image-file": cluster.image_file, "tools": cluster.build_tools}[what]()
        case ["kubectl" | "helm" as tool, *rest]:
            command = {"kubectl": cluster.kubectl, "helm": cluster.helm}[tool]()
            return subprocess.run([*command, *rest], check=False).returncode
        case ["in", *command] if command:
            return subprocess.run([*cluster.within(), *command], check=False).returncode
        case _:
            print(_USAGE, end="", file=sys.stderr)
            return 2
    return 0


def _terminated(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminated)  # tears down as after Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells make background commands ignore SIGINT
    try:
        sys.exit(main(sys.argv[1:]))
    except (Unfit, Failed) as e:
        sys.exit(str(e))
    except KeyboardInterrupt:
        sys.exit(130)
