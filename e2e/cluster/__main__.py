"""`python -m e2e.cluster COMMAND`; see `_USAGE`."""

from __future__ import annotations

import signal
import subprocess
import sys
from types import FrameType

from e2e.cluster import session
from e2e.cluster.artifacts.requirements import Unfit
from e2e.cluster.own.cluster import Failed
from e2e.cluster.provider import Own, choose

UNFIT = 3
"""The exit status of `check` where no cluster can be had."""

_USAGE = """usage: python -m e2e.cluster COMMAND
  check              whether a cluster can be had here; says in one line why not, with exit status 3
  build              what is built once: components and image
  up, down           the cluster
  test ARGUMENT...   brings it up if it isn't, runs pytest on its tests, brings it down if it wasn't up;
                     --all: the tests beyond the gate too
  image              builds Tartlet's image, lets pods use it, and prints its name
  kubectl ARGUMENT...
  helm ARGUMENT...
  in COMMAND...      any other command, such as tartlet or kubectl-tartlet
"""


def main(arguments: list[str]) -> int:
    """Does what the first argument says."""
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
            cluster.down()
        case ["test", *rest]:
            return session.test(cluster, rest)
        case ["image"]:
            print(cluster.image().name)
        case ["image-file" | "tools" as what] if isinstance(cluster, Own):  # for `build`
            {"image-file": cluster.image_file, "tools": cluster.build_tools}[what]()
        case ["kubectl", *rest]:
            return subprocess.run([*cluster.kubectl(), *rest], check=False).returncode
        case ["helm", *rest]:
            return subprocess.run([*cluster.helm(), *rest], check=False).returncode
        case ["in", *command] if command:
            return subprocess.run([*cluster.within(), *command], check=False).returncode
        case _:
            print(_USAGE, end="", file=sys.stderr)
            return 2
    return 0


def _terminated(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminated)  # tidied up as after Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have commands in the background ignore it
    try:
        sys.exit(main(sys.argv[1:]))
    except (Unfit, Failed) as e:
        sys.exit(str(e))
    except KeyboardInterrupt:
        sys.exit(130)
