"""Files of the cluster's components, and names of built files."""

from __future__ import annotations

import csv
import ipaddress
import json
import re
import tarfile
from pathlib import Path

import pytest
import yaml
from cryptography import x509

from e2e.cluster.artifacts.images import pack, sources
from e2e.cluster.artifacts.requirements import Unfit
from e2e.cluster.layout import COMPONENTS, COREDNS, ROOT, Layout, default_layout, files_digest, kubernetes_version
from e2e.cluster.own import configs, pki
from e2e.cluster.own.cluster import Failed, OwnCluster
from e2e.cluster.provider import Given, Kind, Own, choose


def test_each_component_has_a_token_and_only_the_administrator_all_rights() -> None:
    rows = list(csv.reader(configs.tokens_csv({name: f"token-of-{name}" for name in configs.USERS}).splitlines()))
    assert {row[0] for row in rows} == {f"token-of-{name}" for name in configs.USERS}
    assert [row[1] for row in rows if "system:masters" in row[3]] == ["admin"]


def test_addresses_do_not_overlap() -> None:
    pods, services = ipaddress.ip_network(configs.PODS), ipaddress.ip_network(configs.SERVICES)
    assert not pods.overlaps(services)
    assert ipaddress.ip_address(configs.DNS_SERVICE) in services
    assert ipaddress.ip_address(configs.API_SERVICE) == services[1]
    assert ipaddress.ip_address(configs.NODE_ADDRESS) not in pods
    dns = list(yaml.safe_load_all(Path(configs.__file__).with_name("coredns.yaml").read_text()))
    assert [o["spec"]["clusterIP"] for o in dns if o["kind"] == "Service"] == [configs.DNS_SERVICE]
    images = [c["image"] for o in dns if o["kind"] == "Deployment" for c in o["spec"]["template"]["spec"]["containers"]]
    assert images == [configs.DNS_IMAGE]


def test_the_dns_server_has_the_plugins_that_it_is_configured_with() -> None:
    (corefile,) = (
        o["data"]["Corefile"]
        for o in yaml.safe_load_all(Path(configs.__file__).with_name("coredns.yaml").read_text())
        if o["kind"] == "ConfigMap"
    )
    folder = COMPONENTS / "coredns"
    built = re.findall(r"coredns/plugin/(\w+)", (folder / "main.go").read_text())
    assert re.findall(r"^ {2}(\w+)", corefile, re.MULTILINE) == sorted(built, key=corefile.index)
    assert f"require github.com/coredns/coredns {COREDNS}\n" in (folder / "go.mod").read_text()


def test_pods_stay_below_the_group_that_is_removed(tmp_path: Path) -> None:
    kubelet = yaml.safe_load(configs.kubelet(tmp_path))
    assert kubelet["cgroupRoot"] == f"/{configs.CGROUP}"
    assert kubelet["clusterDNS"] == [configs.DNS_SERVICE]


def test_the_pods_network_has_no_way_out() -> None:
    bridge = json.loads(configs.network())["plugins"][0]
    assert bridge["ipMasq"] is False
    assert bridge["ipam"]["ranges"] == [[{"subnet": configs.PODS, "gateway": configs.PODS_GATEWAY}]]
    assert ipaddress.ip_address(configs.PODS_GATEWAY) in ipaddress.ip_network(configs.PODS)


def test_the_api_servers_certificate_is_for_its_addresses(tmp_path: Path) -> None:
    pki.write(tmp_path / "pki")
    certificate = x509.load_pem_x509_certificate((tmp_path / "pki" / "apiserver.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = {str(a) for a in names.get_values_for_type(x509.IPAddress)}
    assert {configs.NODE_ADDRESS, configs.API_SERVICE} <= addresses
    client = x509.load_pem_x509_certificate((tmp_path / "pki" / "kubelet-client.crt").read_bytes())
    assert "O=system:masters" in client.subject.rfc4514_string()


def test_caches_go_where_the_user_keeps_them() -> None:
    assert default_layout({"XDG_CACHE_HOME": "/c", "HOME": "/h"}).cache == Path("/c/tartlet/e2e")
    assert default_layout({"HOME": "/h"}).cache == Path("/h/.cache/tartlet/e2e")


def test_the_version_is_the_modules() -> None:
    assert kubernetes_version().startswith("v1.36.")
    minor = kubernetes_version().removeprefix("v1")
    assert f"k8s.io/api v0{minor}" in (COMPONENTS / "go.mod").read_text()


def test_a_digest_tells_contents_names_and_modes_apart(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("a")
    digests = {files_digest([one], tmp_path), files_digest([one], tmp_path, ["extra"])}
    one.chmod(0o755)
    digests.add(files_digest([one], tmp_path))
    one.write_text("b")
    digests.add(files_digest([one], tmp_path))
    two.write_text("b")
    digests |= {files_digest([two], tmp_path), files_digest([one, two], tmp_path)}
    assert len(digests) == 6
    assert files_digest([two, one], tmp_path) == files_digest([one, two], tmp_path)


def test_all_that_the_dockerfile_copies_names_the_image() -> None:
    found = {str(p.relative_to(ROOT)) for p in sources()}
    assert {"Dockerfile", "pyproject.toml", "constraints/image-base.txt", "crds/tartlet.dev_inferlets.yaml"} <= found
    base = (ROOT / "Dockerfile").read_text().partition("AS worker-builder")[0]
    copies = [line.split()[1:-1] for line in base.splitlines() if line.startswith("COPY ")]
    copied = [source for copy in copies if not copy[0].startswith("--from=") for source in copy]
    assert len(copied) > 5
    for source in copied:
        assert any(f == source or f.startswith(source) for f in found), source
    assert not [f for f in found if "__pycache__" in f]


def test_an_image_holds_its_program(tmp_path: Path) -> None:
    (tmp_path / "program").write_text("#!/bin/true\n")
    image = pack(tmp_path / "i.tar", "localhost/i:1", {"program": tmp_path / "program"}, ["/program"])
    with tarfile.open(image.archive) as tar:
        manifest = json.load(tar.extractfile("manifest.json"))[0]  # type: ignore[arg-type]
        assert manifest["RepoTags"] == ["localhost/i:1"]
        config = json.load(tar.extractfile(manifest["Config"]))  # type: ignore[arg-type]
        assert config["config"]["Entrypoint"] == ["/program"]
        with tarfile.open(fileobj=tar.extractfile(manifest["Layers"][0])) as layer:
            assert [(m.name, m.mode) for m in layer] == [("program", 0o755)]


def test_the_cluster_that_is_there_is_taken(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert isinstance(choose({"KUBECONFIG": "/k"}, docker=lambda: True, layout=layout), Given)
    assert isinstance(choose({}, docker=lambda: True, layout=layout), Kind)
    assert isinstance(choose({}, docker=lambda: False, layout=layout), Own)


def test_a_given_cluster_needs_an_image_that_it_can_pull(tmp_path: Path) -> None:
    with pytest.raises(Unfit, match="TARTLET_E2E_IMAGE"):
        Given(Layout(tmp_path), {"KUBECONFIG": "/k"}).image()


def test_without_a_cluster_commands_say_so(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="make cluster-up"):
        OwnCluster(Layout(tmp_path)).kubectl()
    assert not OwnCluster(Layout(tmp_path)).is_up()
