"""Missing programs are named together with the command that installs them."""

from __future__ import annotations

import pytest

from e2e.cluster.artifacts.requirements import PACKAGES, Unfit, ensure, missing_packages


def test_packages_of_missing_programs() -> None:
    assert missing_packages(lambda _: True) == []
    assert missing_packages(lambda p: p != "/usr/lib/cni/bridge") == ["containernetworking-plugins"]
    assert missing_packages(lambda _: False) == sorted(set(PACKAGES.values()))


def test_the_remedy_is_in_the_message() -> None:
    with pytest.raises(Unfit, match=r"run: apt-get install -y --no-install-recommends etcd-server$"):
        ensure({}, uid=0, look=lambda p: p != "etcd")


def test_root_is_asked_for_first() -> None:
    with pytest.raises(Unfit, match="root"):
        ensure({}, uid=1000, look=lambda _: True)


def test_a_fit_machine_passes() -> None:
    ensure({}, uid=0, look=lambda _: True)
