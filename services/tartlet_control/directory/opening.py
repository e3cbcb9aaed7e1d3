"""Opens the directory that the settings name."""

from __future__ import annotations

from urllib.parse import urlsplit

from tartlet_common.clock import Clock
from tartlet_common.errors.registry import InvalidConfig
from tartlet_control.core.core import Core
from tartlet_control.directory.follower import Follower
from tartlet_control.directory.redis_store import ANSWER_S, RedisStore
from tartlet_control.lease.redis_client import SCHEMES, check_no_password, make_client


def follower_of(core: Core, clock: Clock) -> Follower:
    """Return what keeps the directory that the core's settings name.

    Raises:
        InvalidConfig: its URL has an unknown scheme, or holds a password.
    """
    settings = core.settings
    url = settings.directory_url
    scheme = urlsplit(url).scheme
    if scheme not in SCHEMES:
        detail = f"directory_url begins with {scheme}://; {', '.join(SCHEMES)} are known"
        raise InvalidConfig(role="control", detail=detail, remedy="Use redis://HOST:PORT or rediss://HOST:PORT.")
    check_no_password(url, "directory")
    client = make_client(url, settings.directory_password_file, settings.directory_ca_file, ANSWER_S, bare=True)
    return Follower(core, RedisStore(client, settings.directory_release, core.epoch), clock)
