"""Makes keys and certificates for the components of one cluster."""

from __future__ import annotations

from pathlib import Path

import trustme

from e2e.cluster.own.configs import API_SERVICE, NODE_ADDRESS


def write(directory: Path) -> None:
    """Writes the authority, the certificates of the API server and of its client, and the service accounts' key."""
    directory.mkdir(parents=True, mode=0o700)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "ca.crt")
    authority.private_key_pem.write_to_path(directory / "ca.key")
    service = "kubernetes.default.svc"
    leaves = {
        "apiserver": authority.issue_cert("127.0.0.1", NODE_ADDRESS, API_SERVICE, "localhost", "kubernetes", service),
        # the group with all rights, which the API server needs towards kubelets
        "kubelet-client": authority.issue_cert(
            "apiserver.invalid", common_name="apiserver-kubelet", organization_name="system:masters"
        ),
        "accounts": authority.issue_cert("accounts.invalid"),
    }
    for name, leaf in leaves.items():
        leaf.private_key_pem.write_to_path(directory / f"{name}.key")
        leaf.cert_chain_pems[0].write_to_path(directory / f"{name}.crt")
