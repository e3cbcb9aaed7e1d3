"""Parts of an engine's pod that say which engine it is: the operator's alone, whatever a pool's spec says.

A pool's template may add to the rest of the pod. What keeps namespaces apart is the certificate, of which a namespace
has only its own. These rules keep a pool from losing its identity by mistake, and its key from other images.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any, Final

from tartlet_operator.api.common import rule

ENGINE_ID: Final = "TARTLET_WORKER_ENGINE_ID"
"""The variable that names an engine to control: of two with one name the earlier would be taken for gone."""
PREFIX: Final = "TARTLET_"
"""Beginning of the variables that are the operator's."""
TLS_VOLUME: Final = "tls"
"""The volume of the namespace's worker key and certificate."""
TLS_DIR: Final = "/etc/tartlet/tls"
"""Where the engine's container has it."""
_PARENTS: Final = ("/", "/etc", "/etc/tartlet", TLS_DIR)

_HIDDEN: Final = ", ".join(f"'{path}'" for path in (*_PARENTS, *(f"{path}/" for path in _PARENTS[1:])))
_VISIBLE: Final = f"!has(m.mountPath) || !(m.mountPath in [{_HIDDEN}] || m.mountPath.startsWith('{TLS_DIR}/'))"


def is_operators(variable: str) -> bool:
    """Whether an environment variable is the operator's.

    Example:
        >>> is_operators("TARTLET_WORKER_POOL"), is_operators("OMP_NUM_THREADS")
        (True, False)
    """
    return variable.startswith(PREFIX)


def leaves_identity(mount: Mapping[str, Any]) -> bool:
    """Whether a mount neither shows the engine's certificate elsewhere nor hides or replaces it.

    Example:
        >>> [leaves_identity({"name": "a", "mountPath": path}) for path in ("/data", "/etc//tartlet/")]
        [True, False]
        >>> leaves_identity({"name": "tls", "mountPath": "/copy"})
        False
    """
    path = posixpath.normpath("/" + str(mount.get("mountPath", "a")).lstrip("/"))
    return mount.get("name") != TLS_VOLUME and path not in _PARENTS and not path.startswith(f"{TLS_DIR}/")


def env_rule(field: str) -> dict[str, str]:
    """Return the rule that refuses the operator's variables in a list."""
    return rule(
        f"self.all(e, !e.name.startsWith('{PREFIX}'))",
        f"{field} can't give variables that begin with {PREFIX}: the operator sets them from the pool's spec. Remove "
        "them, and use the fields of spec.engine",
    )


def volumes_rule(field: str) -> dict[str, str]:
    """Return the rule that refuses a volume in place of the identity's."""
    return rule(
        f"self.all(v, !has(v.name) || v.name != '{TLS_VOLUME}')",
        f"{field} can't have a volume named {TLS_VOLUME}: the engine's certificate is in it. Give another name",
    )


def mounts_rule(field: str) -> dict[str, str]:
    """Return the rule that refuses mounts of the identity, and mounts over it."""
    return rule(
        f"self.all(m, (!has(m.name) || m.name != '{TLS_VOLUME}') && ({_VISIBLE}))",
        f"{field} can't mount the volume {TLS_VOLUME}, nor anything at or above {TLS_DIR}: the engine's certificate is "
        "there. Choose another path",
    )
