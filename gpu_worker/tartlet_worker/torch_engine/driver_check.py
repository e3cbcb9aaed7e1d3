"""Whether the NVIDIA driver is new enough for the CUDA that torch was built for."""

from __future__ import annotations

import ctypes

from tartlet_worker.torch_engine.finding import Finding

Version = tuple[int, int]


def driver_version() -> Version | None:
    """Return the newest CUDA that the driver serves; None if there is no driver, or it doesn't answer."""
    found = ctypes.c_int()
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(found))
    except (OSError, AttributeError):
        return None
    return None if failed or not found.value else (found.value // 1000, found.value % 1000 // 10)


def driver_finding(driver: Version | None, built: str | None) -> Finding:
    """Compare the CUDA of the driver with torch's. Pure.

    Args:
        driver: what `driver_version` returned.
        built: `torch.version.cuda`.

    Example:
        >>> [driver_finding(driver, "12.8").status for driver in ((13, 0), (12, 8), (12, 4), (11, 8), None)]
        ['ok', 'ok', 'warn', 'fail', 'fail']
    """
    if built is None:
        return Finding("cuda driver", "fail", "this torch was built without CUDA", "Install a torch for CUDA.")
    if driver is None:
        remedy = "Install NVIDIA's driver; in a container, let the runtime mount it (nvidia-container-toolkit)."
        return Finding("cuda driver", "fail", "no driver (libcuda.so.1) answers", remedy)
    major, minor = map(int, built.split(".")[:2])
    found = f"CUDA {driver[0]}.{driver[1]}, torch's CUDA {built}"
    if driver >= (major, minor):
        return Finding("cuda driver", "ok", found)
    if driver[0] == major:
        remedy = f"Update NVIDIA's driver to one for CUDA {built}: kernels that are compiled when needed may not load."
        return Finding("cuda driver", "warn", found, remedy)
    remedy = f"Update NVIDIA's driver to one for CUDA {built}, or install a torch for CUDA {driver[0]}."
    return Finding("cuda driver", "fail", found, remedy)
