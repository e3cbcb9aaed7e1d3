"""Returns the models that the program sees, and how calls about the first three numbers of models end."""

from __future__ import annotations

import dataclasses

import inferlet
from inferlet import errors


async def main() -> str:
    seen, ended = await inferlet.available_models(), []
    known = await inferlet.get_model()
    for index in (0, 1, 2):
        queue = inferlet.create_queue(dataclasses.replace(known, index=index))
        for call in (lambda q: inferlet.tokenize(q, "text"), inferlet.synchronize):
            try:
                await call(queue)
            except errors.TartletError as e:
                ended.append(type(e).__name__)
    return " ".join([str(seen), *ended])
