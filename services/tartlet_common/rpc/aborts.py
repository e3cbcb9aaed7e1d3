"""Ends calls in typed errors, which travel in the trailing metadata."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc
import grpc.aio

from tartlet_common.errors.registry import TartletError
from tartlet_common.rpc.error_proto import error_to_proto

ERROR_KEY = "tartlet-error-bin"


async def abort(context: grpc.aio.ServicerContext[Any, Any], code: grpc.StatusCode, error: TartletError) -> NoReturn:
    """End a call with an error that Tartlet's clients decode."""
    context.set_trailing_metadata(((ERROR_KEY, error_to_proto(error).SerializeToString()),))
    await context.abort(code, str(error))
