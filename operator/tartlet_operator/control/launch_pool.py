"""The pools on which an Inferlet's launches may run, as control is told. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def launch_pool(namespace: str, pool: str, model: str, served: Iterable[str]) -> str:
    """Return the pool of a launch: the one that is named, else any of the namespace's that serve the model, else any.

    So a namespace's pools are preferred to shared ones, and nothing stands in for a pool that an Inferlet names.

    Args:
        namespace: the Inferlet's namespace.
        pool: the EnginePool that the Inferlet names, "" for none.
        model: the model that the launch asks for, "" for any.
        served: the models of the namespace's pools.

    Example:
        >>> launch_pool("ns", "a", "", [])
        'ns/a'
        >>> [launch_pool("ns", "", model, ["small"]) for model in ("", "small", "huge")]
        ['ns/*', 'ns/*', '*']
    """
    if pool:
        return f"{namespace}/{pool}"
    return f"{namespace}/*" if any(not model or model == each for each in served) else "*"


def kept_pool(pool: str, model: str, pools: Mapping[str, str]) -> str:
    """Return the pool of an Inferlet that holds for a run, "" for none.

    A run that names the pool's own model, or no model, keeps to the pool. A run of another model can't.

    Args:
        pool: the EnginePool that the Inferlet names, "" for none.
        model: the model that the run names, "" for none.
        pools: the models of the namespace's pools, by the pools' names.

    Example:
        >>> [kept_pool("gpu", model, {"gpu": "big"}) for model in ("", "big", "small")]
        ['gpu', 'gpu', '']
    """
    return pool if not model or pools.get(pool) == model else ""
