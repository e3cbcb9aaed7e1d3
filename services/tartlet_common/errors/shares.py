"""Errors of what tenants have shares of. They are found as `tartlet_common.errors.registry.NAME`."""

from __future__ import annotations

from tartlet_common.errors.base import TartletError, register

__all__ = ["NameBudgetExceeded", "TenantOverShare"]


@register(320)
class NameBudgetExceeded(TartletError):
    message = "exported contexts: the tenant has {held} {kind} and asked for {asked} more; its limit is {limit}"
    remedy = "Unexport names, export less, or let control's operator raise name_tokens."


@register(321, retryable=True)
class TenantOverShare(TartletError):
    message = "the engine ran out of {kind} ({total} in all) for tenants within their share; the program's is over it"
    remedy = "Launch it again later, use fewer pages, or use plain contexts: those give way and go on later."
