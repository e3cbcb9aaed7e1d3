"""What the operator's settings say about the pods of workers."""

from __future__ import annotations

from dataclasses import dataclass

from tartlet_common.config.lists import listed
from tartlet_common.config.settings import OperatorSettings


@dataclass(frozen=True, slots=True)
class WorkerDefaults:
    """What the operator's settings say about workers' pods."""

    image: str
    pull_policy: str
    control: str  # control's address as pods reach it
    tls_secret: str = ""
    tls_domain: str = ""
    service_account: str = ""
    log_format: str = "json"
    log_level: str = "info"
    otlp_endpoint: str = ""
    pull_secrets: tuple[str, ...] = ()

    @staticmethod
    def of(settings: OperatorSettings) -> WorkerDefaults:
        """Read them from the settings."""
        return WorkerDefaults(
            image=settings.worker_image,
            pull_policy=settings.worker_pull_policy,
            control=settings.worker_control or settings.control,
            tls_secret=settings.worker_tls_secret,
            tls_domain=settings.tls_domain,
            service_account=settings.worker_service_account,
            log_format=settings.log_format,
            log_level=settings.log_level,
            otlp_endpoint=settings.worker_otlp_endpoint,
            pull_secrets=tuple(listed(settings.worker_pull_secrets)),
        )
