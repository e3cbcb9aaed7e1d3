"""What the resources share: base model, conditions, validation helpers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

GROUP: Final = "tartlet.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

_QUANTITY = r"^[0-9]{1,18}(\.[0-9]{1,9})?([eE][+-]?[0-9]{1,2}|[mkMGTPE]|[KMGTPE]i)?$"
_QUANTITY_MAX = 2**53  # what JSON holds exactly


def rule(expression: str, message: str, **more: str) -> dict[str, str]:
    """One CEL rule: what must hold, and what to say when it doesn't."""
    return {"rule": expression, "message": message, **more}


def between(least: str, most: str) -> str:
    """CEL: the quantity `self` lies there."""
    return f"!quantity(self).isLessThan(quantity('{least}')) && !quantity(self).isGreaterThan(quantity('{most}'))"


def rules(*each: dict[str, str]) -> dict[str, Any]:
    """CEL rules as the extra keywords of a JSON schema."""
    return {"x-kubernetes-validations": list(each)}


class ApiModel(BaseModel):
    """Base of all models: camelCase outside, snake_case inside; what the API server pruned is not missed."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)

    def dump(self) -> dict[str, Any]:
        """As a manifest's value, without what is unset."""
        return self.model_dump(by_alias=True, exclude_none=True, mode="json")


Quantity = Annotated[
    str | int,
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": _QUANTITY,
            "maxLength": 32,
            "minimum": 0,
            "maximum": _QUANTITY_MAX,
            "x-kubernetes-int-or-string": True,
        }
    ),
]
"""A Kubernetes quantity, such as `2`, `500m` or `4Gi`."""

OBJECT_NAME: Final = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
Name = Annotated[str, Field(min_length=1, max_length=253)]


def an_object(field: str) -> dict[str, Any]:
    """The rule that a name is one that an object of the API can have."""
    told = (
        f"{field} must be an object's name, of lower-case letters, digits, '-' and '.', none of these two at an end: "
        "name an object that exists"
    )
    return rules(rule(f"self.matches('{OBJECT_NAME}')", told))


MODEL_NAME: Final = "^[A-Za-z0-9][A-Za-z0-9._/-]*$"


def a_model(field: str) -> dict[str, Any]:
    """The rule that a name is one that an engine's model can have, or empty."""
    told = (
        f"{field} must start with a letter or digit and hold only letters, digits, '.', '_', '/' and '-': name a model "
        "that an EnginePool serves"
    )
    return rules(rule(f"size(self) == 0 || self.matches('{MODEL_NAME}')", told))


Text = Annotated[str, Field(max_length=4096)]

OutputMode = Literal["status", "none"]
"""Where the texts of a run are kept: in its status, or nowhere."""
Labels = Annotated[dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=64)]


class Condition(ApiModel):
    """One condition, after the Kubernetes API conventions."""

    type: Annotated[str, Field(max_length=316)] = Field(description="What the condition is about, in CamelCase.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    reason: Annotated[str, Field(min_length=1, max_length=1024)] = Field(description="Why, as one CamelCase word.")
    message: Annotated[str, Field(max_length=32768)] = Field(default="", description="Why, for people.")
    observed_generation: int = Field(default=0, ge=0, description="The generation of the spec that this speaks of.")
    last_transition_time: str = Field(
        description="When the status last changed.", json_schema_extra={"format": "date-time"}
    )


Conditions = Annotated[
    list[Condition],
    Field(
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    ),
]


@dataclass(frozen=True, slots=True)
class Column:
    """A printer column."""

    name: str
    path: str
    type: str = "string"
    priority: int = 0
    description: str = ""


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind: its names, model, and how kubectl shows and scales it."""

    kind: str
    plural: str
    short: str
    model: type[ApiModel]
    columns: Sequence[Column]
    scale: Mapping[str, str] | None = None

    @property
    def path(self) -> str:
        """Of the kind's collection below a namespace, in the API."""
        return f"apis/{API_VERSION}"


def condition_column(name: str, condition: str, field: str = "status", priority: int = 0) -> Column:
    """A column that shows a field of a condition."""
    return Column(name, f'.status.conditions[?(@.type=="{condition}")].{field}', priority=priority)


AGE: Final = Column("Age", ".metadata.creationTimestamp", "date")

_NUMBER: Final = re.compile(
    r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?"
)
_PREFIXES: Final = "kMGTPE"
_FACTORS: Final[dict[str | None, Fraction]] = {
    None: Fraction(1),
    **{small: Fraction(1, 1000**n) for n, small in enumerate("mun", 1)},
    **{large: Fraction(1000**n) for n, large in enumerate(_PREFIXES, 1)},
    **{f"{large.upper()}i": Fraction(1024**n) for n, large in enumerate(_PREFIXES, 1)},
}


def quantity(value: str | int) -> Fraction:
    """A quantity as a number, in any form that Kubernetes knows.

    Example:
        >>> [str(quantity(text)) for text in ("2Ki", "500m", 3, "+.5e3", "1E")]
        ['2048', '1/2', '3', '500', '1000000000000000000']
        >>> quantity("0.051") == quantity("51m")
        True

    Raises:
        ValueError: it is none.
    """
    text = str(value)
    found = _NUMBER.fullmatch(text)
    if found is None:
        msg = f"{text!r} is no quantity"
        raise ValueError(msg)
    return Fraction(found[1]) * _FACTORS[found[2]]
