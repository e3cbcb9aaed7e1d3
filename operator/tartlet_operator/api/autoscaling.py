"""`spec.autoscaling` of an EnginePool: the bounds between which the operator scales the pool on its waiting work."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from tartlet_operator.api.common import ApiModel, rule, rules


class Autoscaling(ApiModel):
    """Bounds and aims of a pool whose `spec.replicas` the operator sets."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.minReplicas <= self.maxReplicas",
                "spec.autoscaling.minReplicas must be at most spec.autoscaling.maxReplicas: lower it, or raise that",
            )
        )
    )

    min_replicas: int = Field(
        default=1,
        ge=0,
        le=1000,
        description="Fewest engines. With 0 a pool without programs goes to no engine; an InferletRun that waits for "
        "the pool brings one back, a launch by a client doesn't.",
    )
    max_replicas: int = Field(ge=1, le=1000, description="Most engines.")
    target_waiting_milliseconds: int = Field(
        default=1000,
        ge=10,
        le=3_600_000,
        description="Device time that may wait for each engine: about how long a new command waits for its turn.",
    )
    scale_down_seconds: int = Field(
        default=300,
        ge=1,
        le=86_400,
        description="Engines go when none of these last seconds needed them.",
    )
