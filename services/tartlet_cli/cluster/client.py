"""Makes a client of a release's runtime, through the API server and with the release's `client` identity."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tartlet_cli.cluster.api import SECRETS, Cluster
from tartlet_cli.cluster.errors import IdentityMissing, NotThere, RuntimeUnreachable
from tartlet_cli.cluster.options import Target
from tartlet_cli.cluster.port_forward import PortForward
from tartlet_cli.cluster.release import Release, find_pod, find_release
from tartlet_common.config.paths import make_private, run_dir
from tartlet_common.errors.registry import DiskFull, RuntimeLost, Unavailable, UnknownInferlet
from tartlet_common.rpc.endpoints import Tls

if TYPE_CHECKING:
    from tartlet.client import AsyncClient

_FILES = {"certificate": "tls.crt", "key": "tls.key", "authority": "ca.crt"}


@contextlib.asynccontextmanager
async def cluster_client(target: Target, say: Callable[[str], None] = lambda _: None) -> AsyncIterator[AsyncClient]:
    """Yield a client of the release's runtime; its port-forward and files last until the end of the block.

    Args:
        target: the cluster, namespace and release.
        say: receives lines of progress.

    Raises:
        TartletError: one of `tartlet_cli.cluster.errors`.
    """
    from tartlet.client import AsyncClient

    with contextlib.ExitStack() as stack:
        say("asking the API server")
        cluster = stack.enter_context(await asyncio.to_thread(Cluster.connect, target))
        release = await asyncio.to_thread(find_release, cluster, target.release)
        secret = await asyncio.to_thread(_identity, cluster, release)
        pod, port = await asyncio.to_thread(find_pod, cluster, release)
        say(f"connecting to pod {pod}")
        forward = PortForward(cluster, release.namespace, pod, port, lambda: find_pod(cluster, release))
        stack.callback(forward.close)
        await asyncio.to_thread(forward.start)
        tls = stack.enter_context(private_files(secret, release))
        try:
            async with AsyncClient(f"localhost:{forward.local_port}", tls=tls) as client:
                yield client
        except UnknownInferlet as e:
            seen = f"`kubectl -n {release.namespace} get inferlet {e.fields.get('inferlet', '')}`"
            remedy = f"{seen} tells whether there is one, and why it isn't Ready; `tartlet apply FILE` makes one."
            raise UnknownInferlet(**e.fields | {"remedy": remedy}) from e
        except (Unavailable, RuntimeLost) as e:
            broken = forward.error
            if broken is not None:
                raise broken from e
            if isinstance(e, RuntimeLost):
                raise
            detail = e.fields.get("detail", e)
            raise RuntimeUnreachable(pod=pod, namespace=release.namespace, detail=detail) from e


@contextlib.contextmanager
def private_files(secret: dict[str, Any], release: Release) -> Iterator[Tls]:
    """Write the Secret's certificate, key and authority to files that only this user can read; remove them at the end.

    The files lie in the directory that `tartlet run` uses for sockets; later runs remove the files of killed processes.

    Raises:
        NotThere: the Secret lacks one of the three.
    """
    base = make_private(run_dir())
    directory = Path(tempfile.mkdtemp(prefix=f"run-{os.getpid()}-", dir=base))  # mode 0700
    try:
        paths = {}
        for role, name in _FILES.items():
            try:
                data = base64.b64decode((secret.get("data") or {})[name], validate=True)
            except (KeyError, binascii.Error) as e:
                action, detail = "use the client's identity", f"secret {release.client_secret} has no {name}"
                raise NotThere(action=action, detail=detail) from e
            paths[role] = directory / name
            try:
                with open(os.open(paths[role], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:  # noqa: PTH123
                    file.write(data)
            except OSError as e:
                raise DiskFull(path=str(paths[role]), detail=e.strerror) from e
        yield Tls(**paths, domain=release.tls_domain)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _identity(cluster: Cluster, release: Release) -> dict[str, Any]:
    """Return the Secret with the certificate for clients.

    Raises:
        Forbidden: this user may not read it; the editor role may.
        IdentityMissing: the Secret doesn't exist.
    """
    secret = cluster.find(SECRETS, release.client_secret, release.namespace)
    if secret is None:
        raise IdentityMissing(release=release.name, namespace=release.namespace, name=release.client_secret)
    return secret
