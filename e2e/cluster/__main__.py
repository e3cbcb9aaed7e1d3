"""`python -m e2e.cluster up|down|build|image|kubectl|helm`."""

from __future__ import annotations

import signal
import subprocess
import sys
from types import FrameType

from e2e.cluster import requirements
from e2e.cluster.own import Failed
from e2e.cluster.provider import choose

_USAGE = "usage: python -m e2e.cluster up | down | image | kubectl ARGUMENT... | helm ARGUMENT..."


def main(arguments: list[str]) -> int:
    """Does what the first argument says."""
    cluster = choose()
    match arguments:
        case ["up"]:
            cluster.up()
        case ["down"]:
            cluster.down()
        case ["image"]:
            print(cluster.image().name)
        case ["kubectl", *rest]:
            return subprocess.run([*cluster.kubectl(), *rest], check=False).returncode
        case ["helm", *rest]:
            return subprocess.run([*cluster.helm(), *rest], check=False).returncode
        case _:
            print(_USAGE, file=sys.stderr)
            return 2
    return 0


def _terminated(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminated)  # tidied up as after Ctrl-C
    try:
        sys.exit(main(sys.argv[1:]))
    except (requirements.Unfit, Failed) as e:
        sys.exit(str(e))
    except KeyboardInterrupt:
        sys.exit(130)
