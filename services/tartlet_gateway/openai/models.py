"""`GET /v1/models` and `GET /v1/models/{id}`."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from tartlet_gateway.http.exchange import Exchange
from tartlet_gateway.openai.errors import JSON, ApiError, answering
from tartlet_gateway.runs.backends import Backends
from tartlet_gateway.runs.caller import caller_of
from tartlet_gateway.runs.models import ServedModel, adapted


class ModelsEndpoint:
    """Lists the models that engines serve and the inferlets of the catalogue behind them, or shows one."""

    def __init__(self, backends: Backends) -> None:
        self._backends = backends

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        exchange = Exchange(scope, receive, send)
        name = scope["path_params"].get("name")
        async with answering(exchange):
            models = self._backends.of(caller_of(scope)).models
            there = await models.list()
            window = {model.name: model.max_position for model in there}
            offered = [ServedModel(n, True, window[n.rpartition("/")[0]]) for n in await models.inferlets()]
            answer = listed([*there, *adapted(there), *offered]) if name is None else shown(name, there, offered)
            await exchange.reply(200, msgspec.json.encode(answer), [JSON])


def listed(models: list[ServedModel]) -> dict[str, Any]:
    """Return the list in OpenAI's form."""
    return {"object": "list", "data": [_entry(model) for model in models]}


def shown(name: str, models: list[ServedModel], offered: list[ServedModel]) -> dict[str, Any]:
    """Return one model in OpenAI's form; an inferlet may be shown with an adapter, as MODEL:ADAPTER/INFERLET.

    Args:
        name: the one to show.
        models: those that engines serve.
        offered: the inferlets of the catalogue, as MODEL/INFERLET.

    Raises:
        ApiError: 404, there is none of this name.
    """
    everything = [*models, *adapted(models), *offered]
    for model in everything:
        if model.name == name:
            return _entry(model)
    base, _, inferlet = name.rpartition("/")
    plain = f"{base.rpartition(':')[0]}/{inferlet}"
    under = next((model for model in adapted(models) if model.name == base), None)
    if under is not None and any(model.name == plain for model in offered):
        return _entry(under._replace(name=name))
    names = ", ".join(model.name for model in everything[:20]) or "none"
    raise ApiError(404, f"No engine serves a model of this name. There are: {names}.", code="model_not_found")


def _entry(model: ServedModel) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": 0,
        "owned_by": "tartlet",
        "max_model_len": model.max_position,
    }
