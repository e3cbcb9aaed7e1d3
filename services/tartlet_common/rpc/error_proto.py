"""Converts errors to and from their proto form."""

from __future__ import annotations

from tartlet_common.errors.registry import TartletError
from tartlet_protos import common_pb2


def error_to_proto(error: TartletError | None) -> common_pb2.Error:
    """Convert an error to its proto form; None becomes number 0, "no error"."""
    if error is None:
        return common_pb2.Error()
    return common_pb2.Error(
        number=error.number,
        name=error.name,
        message=error.text,
        remedy=error.remedy,
        retryable=error.retryable,
        fields_json=error.to_json(),
    )


def error_from_proto(message: common_pb2.Error) -> TartletError | None:
    """Return the error that a message names, or None for number 0."""
    if not message.number:
        return None
    return TartletError.from_wire(message.number, message.fields_json)
