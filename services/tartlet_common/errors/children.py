"""Errors of programs that other programs have started. They are found as `tartlet_common.errors.registry.NAME`."""

from __future__ import annotations

from tartlet_common.errors.base import TartletError, register

__all__ = ["ParentEnded"]


@register(218)
class ParentEnded(TartletError):
    message = "the program {parent} that started this one has ended"
    remedy = "Let the parent await the child's result, or spawn the child with detached=True if it is to live on."
