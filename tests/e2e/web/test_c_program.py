"""A core-Wasm program in C sends a request and reads the reply piece by piece."""

from __future__ import annotations

from pathlib import Path

import pytest

from tartlet import Capabilities, LaunchSpec
from tests.e2e.compiling import compiled
from tests.e2e.serving import client_of, output, serving
from tests.runtime.web.servers import serving as serving_http

PROGRAM = """
#include "tartlet.h"
static const char head[] = "{\\"method\\":\\"POST\\",\\"url\\":\\"URL/echo\\"}";
static int32_t tartlet_main(void) {
  if (tl_await(tl_ask(tl_http_read(9, 1, false)))) return 3; // there is no request 9
  tl_record *answer = tl_await(tl_ask(tl_http_request(1, 5, head, sizeof head - 1, "ping", 4)));
  if (!answer || answer->b) return 1;
  tl_send(tl_payload(answer) + answer->a, answer->length - answer->a);
  for (;;) {
    answer = tl_await(tl_ask(tl_http_read(1, 7, false)));
    if (!answer) return 2;
    tl_send(tl_payload(answer), answer->length);
    if (answer->b) return 0;
  }
}
"""


async def test_a_program_in_c_reads_a_reply_piece_by_piece(run_dir: Path, tmp_path: Path) -> None:
    pytest.importorskip("ziglang")
    async with serving_http() as web:
        program = compiled(tmp_path, PROGRAM.replace("URL", web.url))
        with serving(run_dir, "--allow-http", "127.0.0.1") as server:
            async with client_of(server) as client:
                spec = LaunchSpec(source=program, capabilities=Capabilities(http=["127.0.0.1"]))
                body, _ = await output(client, spec)
    assert body.startswith(b"POST /echo\n")
    assert body.endswith(b"\nping")
    assert len(web.heard) == 1
