"""Secrets go from the host's files into headers of requests to the hosts that they are bound to, and nowhere else."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from tartlet_common.capabilities import Grant
from tartlet_common.egress.hosts import Url
from tartlet_common.errors.registry import InvalidArgument, InvalidConfig, NotAllowed, TartletError, Unavailable
from tartlet_protos import common_pb2
from tartlet_runtime.web.asked import Asked
from tartlet_runtime.web.secrets import Secrets
from tests.runtime.harness import native, running
from tests.runtime.web.servers import serving
from tests.runtime.web.test_requests import Web

VALUE = "hunter2-of-the-host"
GRANTS = [Grant("launch", ("*",), ("key", "other", "lines", "missing"))]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "secrets"
    made.mkdir()
    (made / "key").write_text(VALUE + "\n")
    (made / "other").write_text("x")
    (made / "lines").write_text("a\r\nEvil: b")
    (tmp_path / "outside").write_text("no secret")
    return made


def filled(secrets: Secrets, url: str, *named: tuple[str, str], tenant: str = "t") -> list[tuple[str, str]]:
    return secrets.headers(Asked("GET", Url.of(url), secrets=named), tenant, GRANTS)


def test_a_name_or_names_in_a_text_are_filled_in(directory: Path) -> None:
    secrets = Secrets.of(directory, ["key=api.test", "t/other=api.test", "key=http://plain.test:80"])
    assert filled(secrets, "https://api.test/", ("Authorization", "Bearer {key}"), ("X", "key")) == [
        ("Authorization", f"Bearer {VALUE}"),
        ("X", VALUE),
    ]
    assert filled(secrets, "https://api.test/", ("X", "{key} and {other}")) == [("X", f"{VALUE} and x")]
    assert filled(secrets, "http://plain.test/", ("X", "key")) == [("X", VALUE)]
    (directory / "key").write_text("changed")
    assert filled(secrets, "https://api.test/", ("X", "key")) == [("X", "changed")]


def test_a_secret_goes_to_its_hosts_and_for_its_tenant_alone(directory: Path) -> None:
    secrets = Secrets.of(directory, ["key=api.test", "t/other=api.test"])
    for url in ("https://api.test.evil.test/", "https://b.api.test/", "http://api.test/"):
        with pytest.raises(NotAllowed) as caught:
            filled(secrets, url, ("X", "key"))
        assert "http_secrets" in caught.value.remedy
    with pytest.raises(NotAllowed):
        filled(secrets, "https://api.test/", ("X", "other"), tenant="u")
    with pytest.raises(NotAllowed) as caught:
        secrets.headers(Asked("GET", Url.of("https://api.test/"), secrets=(("X", "key"),)), "t", [Grant("entry")])
    assert "entry" in caught.value.remedy


@pytest.mark.parametrize("bindings", [["a/key=x", "b/key=y"], ["a/key=x", "key=y"], ["key=x", "/key=x"]])
def test_a_name_that_two_owners_bind_is_refused_since_they_would_share_its_file(bindings: list[str]) -> None:
    with pytest.raises(InvalidConfig) as caught:
        Secrets.of(None, bindings)
    assert "key" in caught.value.fields["detail"]


def test_each_tenant_gets_the_secret_that_is_bound_for_it(directory: Path) -> None:
    secrets = Secrets.of(directory, ["a/key=api.test", "a/key=b.test", "b/other=api.test"])
    for tenant, name, value in (("a", "key", VALUE), ("b", "other", "x")):
        assert filled(secrets, "https://api.test/", ("X", name), tenant=tenant) == [("X", value)]
    for tenant, name in (("a", "other"), ("b", "key")):
        with pytest.raises(NotAllowed):
            filled(secrets, "https://api.test/", ("X", name), tenant=tenant)


@pytest.mark.parametrize("name", ["../outside", "", ".", "..", "a/b", "{key", "{}", "{../outside}", "ke y", "\u212aey"])
def test_what_is_no_name_reads_no_file(directory: Path, name: str) -> None:
    secrets = Secrets.of(directory, ["key=api.test"])
    with pytest.raises(InvalidArgument):
        filled(secrets, "https://api.test/", ("X", name))


def test_a_file_that_is_missing_or_splits_a_header_is_said_without_its_value(directory: Path) -> None:
    secrets = Secrets.of(directory, ["lines=api.test", "missing=api.test"])
    for name in ("lines", "missing"):
        with pytest.raises(Unavailable) as caught:
            filled(secrets, "https://api.test/", ("X", name))
        assert "Evil" not in str(caught.value)
    for wrong in ("key", "=h", "a b=h", "key=h/path", "key="):
        with pytest.raises(InvalidConfig):
            Secrets.of(directory, [wrong])


async def test_the_program_its_journal_and_the_log_never_hold_it_and_a_redirect_drops_it(
    directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with serving() as other, serving() as server:
        changes: dict[str, Any] = {
            "http_hosts": "127.0.0.1",
            "http_private_hosts": "127.0.0.1",
            "http_secrets_dir": directory,
            "http_secrets": f"key=http://127.0.0.1:{server.port}",
            "keep_journals": True,
        }
        async with running(tmp_path, **changes) as rig:
            grant = common_pb2.Capabilities(http=["127.0.0.1"], secrets=["key"])
            stream, guest = await native(rig, capabilities=grant)
            web, named = Web(guest, stream), [["Authorization", "Bearer {key}"]]
            for path in ("/redirect?/same", f"/redirect?{other.url}/elsewhere", "/broken", "/silent"):
                try:
                    await web.get(f"{server.url}{path}", secrets=named, wanted=0, timeout_s=0.5)
                except TartletError as e:
                    told = json.dumps(e.fields) + str(e)
                    assert VALUE not in told
                await web_closed(web)
            assert [heard.headers.get("authorization") for heard in server.heard] == [f"Bearer {VALUE}"] * 5
            assert "authorization" not in other.heard[0].headers
            with pytest.raises(NotAllowed):
                await web.get(f"{other.url}/", secrets=named)
            with pytest.raises(InvalidArgument):
                await web.get(server.url, secrets=named, headers=[["authorization", "mine"]])
            guest.end()
            await stream.rest()
    assert_no_journal_holds_it(tmp_path)
    assert VALUE not in caplog.text


def assert_no_journal_holds_it(directory: Path) -> None:
    journals = b"".join(path.read_bytes() for path in directory.rglob("*.journal"))
    assert b"Bearer {key}" not in journals, "commands aren't recorded, only what the program is told"
    assert len(journals) > 100
    assert VALUE.encode() not in journals


async def web_closed(web: Web) -> None:
    """Closes the program's request, if it is open."""
    from tartlet_common.abi import Op

    web.guest.submit((Op.HTTP_CLOSE, {"b": 1}))


async def test_a_launch_without_the_secret_does_not_get_it(directory: Path, tmp_path: Path) -> None:
    async with serving() as server:
        changes: dict[str, Any] = {
            "http_hosts": "127.0.0.1",
            "http_private_hosts": "127.0.0.1",
            "http_secrets_dir": directory,
            "http_secrets": "key=http://127.0.0.1",
        }
        async with running(tmp_path, **changes) as rig:
            stream, guest = await native(rig, capabilities=common_pb2.Capabilities(http=["127.0.0.1"]))
            with pytest.raises(NotAllowed):
                await Web(guest, stream).get(server.url, secrets=[["X", "key"]])
        assert server.connections == 0
