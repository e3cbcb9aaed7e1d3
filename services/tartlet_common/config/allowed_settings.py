"""Settings of control about what programs share with others, and start."""

from __future__ import annotations

from pydantic import BaseModel, Field

_MEANS = "names or beginnings of names, such as jobs.* or team-a=reader"


class AllowedSettings(BaseModel):
    """The most that programs may use, whatever their launches and the catalogue say."""

    allowed_topics: str = Field(
        "*",
        json_schema_extra={"means": _MEANS},
        description="topics that programs may use, separated by commas; a * at the end stands for any rest, TENANT= "
        "before a topic gives it to one tenant alone; empty: none",
    )
    allowed_names: str = Field(
        "*",
        json_schema_extra={"means": _MEANS},
        description="names of contexts that programs may export, import and unexport; as allowed_topics",
    )
    allowed_spawn: str = Field(
        "*",
        json_schema_extra={"means": _MEANS},
        description="programs that programs may start, by their names in the catalogue, their own source by the name "
        "that tartlet ps shows; as allowed_topics",
    )
