"""Answers by rules: it calls the tool that a user names, tells what a tool said, and else repeats the user.

"call NAME {...}" in the user's last message is a call of a tool with these arguments.
"""

from __future__ import annotations

import json
import re

from inferlet import reply

CALL = re.compile(r"call (\w+) (\{.*?\})")


def text_of(message):
    content = message.get("content") or ""
    return content if isinstance(content, str) else " ".join(part.get("text", "") for part in content)


async def main(args):
    request = await reply.request(args)
    messages = request["messages"]
    last = messages[-1]
    said = [text_of(m) for m in messages if m["role"] == "user"]
    tools = {tool["function"]["name"] for tool in request.get("tools") or []}
    asked = CALL.search(said[-1]) if said else None
    if last["role"] == "tool":
        reply.delta(f"The tool said: {text_of(last)}")
    elif asked and asked[1] in tools:
        reply.tool_call(asked[1], json.dumps(json.loads(asked[2])))
    else:
        reply.delta("You said: ")
        reply.delta(said[-1] if said else "nothing")
    reply.usage(prompt_tokens=7, completion_tokens=3)
