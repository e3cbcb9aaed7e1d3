"""Calls one call and checks what it did.

The arguments are the case, a tag for names, the URL of a server, and an operation or "". With an operation, the host
does nothing at it: its record is left out, and who waits for its answer gets an empty one at once. The case must fail.
"""

import given
import of_control
import of_runtime
import of_worker
from stubbing import stub

import inferlet

CASES = {**vars(of_runtime), **vars(of_control), **vars(of_worker)}


async def echo() -> str:
    """A child: says each message again, until one ends it."""
    while (message := await inferlet.receive()) != "end":
        inferlet.send(message)
    return message


async def main(args: list[str]) -> str:
    given.args = args
    case, given.tag, given.url, op = args
    if case == "echo":
        return await echo()
    await inferlet.get_model()
    if op:
        stub(int(op))
    return await CASES[case]() or "done"
