"""Pieces of the core API's pods, with the schema that the API server checks and prunes them by.

Their values are passed on as they are. The schema names every field, down to the last: the API server drops what it
doesn't know, so no object nests deeper than its kind does. Without a schema it would keep anything, at any depth.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field, WithJsonSchema

from tartlet_operator.api.common import ApiModel, Name, Quantity, an_object, rule, rules

Schema = dict[str, Any]

LABEL: Final = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"

_MOST: Final = 128
"""Entries of a list or a map."""
_STRING: Final[Schema] = {"type": "string", "maxLength": 4096}
_INTEGER: Final[Schema] = {"type": "integer", "minimum": -(2**53), "maximum": 2**53}
_BOOLEAN: Final[Schema] = {"type": "boolean"}
_QUANTITY: Final[Schema] = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "maxLength": 32,
    "x-kubernetes-int-or-string": True,
}


def _object(**fields: Schema) -> Schema:
    return {"type": "object", "properties": fields}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items, "maxItems": _MOST}


def _map(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values, "maxProperties": _MOST}


_STRINGS: Final = _list(_STRING)
_STRING_MAP: Final = _map(_STRING)
_QUANTITY_MAP: Final = _map(_QUANTITY)


# ---- where pods go ----------------------------------------------------------------------------------------------

_REQUIREMENT: Final = _object(key=_STRING, operator=_STRING, values=_STRINGS)
_LABEL_SELECTOR: Final = _object(matchLabels=_STRING_MAP, matchExpressions=_list(_REQUIREMENT))
_NODE_TERM: Final = _object(matchExpressions=_list(_REQUIREMENT), matchFields=_list(_REQUIREMENT))
_POD_TERM: Final = _object(
    labelSelector=_LABEL_SELECTOR,
    namespaceSelector=_LABEL_SELECTOR,
    namespaces=_STRINGS,
    topologyKey=_STRING,
    matchLabelKeys=_STRINGS,
    mismatchLabelKeys=_STRINGS,
)
_POD_AFFINITY: Final = _object(
    requiredDuringSchedulingIgnoredDuringExecution=_list(_POD_TERM),
    preferredDuringSchedulingIgnoredDuringExecution=_list(_object(weight=_INTEGER, podAffinityTerm=_POD_TERM)),
)
_AFFINITY: Final = _object(
    nodeAffinity=_object(
        requiredDuringSchedulingIgnoredDuringExecution=_object(nodeSelectorTerms=_list(_NODE_TERM)),
        preferredDuringSchedulingIgnoredDuringExecution=_list(_object(weight=_INTEGER, preference=_NODE_TERM)),
    ),
    podAffinity=_POD_AFFINITY,
    podAntiAffinity=_POD_AFFINITY,
)
_TOLERATION: Final = _object(key=_STRING, operator=_STRING, value=_STRING, effect=_STRING, tolerationSeconds=_INTEGER)
_TOPOLOGY_SPREAD: Final = _object(
    maxSkew=_INTEGER,
    topologyKey=_STRING,
    whenUnsatisfiable=_STRING,
    labelSelector=_LABEL_SELECTOR,
    minDomains=_INTEGER,
    nodeAffinityPolicy=_STRING,
    nodeTaintsPolicy=_STRING,
    matchLabelKeys=_STRINGS,
)

# ---- environment and volumes ------------------------------------------------------------------------------------

_KEY_OF: Final = _object(name=_STRING, key=_STRING, optional=_BOOLEAN)
_FIELD_OF_POD: Final = _object(apiVersion=_STRING, fieldPath=_STRING)
_RESOURCE_OF_POD: Final = _object(containerName=_STRING, resource=_STRING, divisor=_QUANTITY)
_VALUE_FROM: Final = _object(
    configMapKeyRef=_KEY_OF,
    secretKeyRef=_KEY_OF,
    fieldRef=_FIELD_OF_POD,
    resourceFieldRef=_RESOURCE_OF_POD,
    fileKeyRef=_object(volumeName=_STRING, path=_STRING, key=_STRING, optional=_BOOLEAN),
)
_VOLUME_MOUNT: Final = _object(
    name=_STRING,
    mountPath=_STRING,
    subPath=_STRING,
    subPathExpr=_STRING,
    readOnly=_BOOLEAN,
    recursiveReadOnly=_STRING,
    mountPropagation=_STRING,
)
_ITEMS: Final = _list(_object(key=_STRING, path=_STRING, mode=_INTEGER))
_POD_FILES: Final = _list(
    _object(path=_STRING, mode=_INTEGER, fieldRef=_FIELD_OF_POD, resourceFieldRef=_RESOURCE_OF_POD)
)
_SECRET: Final = _object(name=_STRING)
_CLAIM: Final = _object(
    metadata=_object(labels=_STRING_MAP, annotations=_STRING_MAP),
    spec=_object(
        accessModes=_STRINGS,
        storageClassName=_STRING,
        volumeMode=_STRING,
        volumeName=_STRING,
        volumeAttributesClassName=_STRING,
        selector=_LABEL_SELECTOR,
        resources=_object(requests=_QUANTITY_MAP, limits=_QUANTITY_MAP),
        dataSource=_object(apiGroup=_STRING, kind=_STRING, name=_STRING),
        dataSourceRef=_object(apiGroup=_STRING, kind=_STRING, name=_STRING, namespace=_STRING),
    ),
)
_PROJECTED: Final = _object(
    configMap=_object(name=_STRING, items=_ITEMS, optional=_BOOLEAN),
    secret=_object(name=_STRING, items=_ITEMS, optional=_BOOLEAN),
    downwardAPI=_object(items=_POD_FILES),
    serviceAccountToken=_object(audience=_STRING, expirationSeconds=_INTEGER, path=_STRING),
    clusterTrustBundle=_object(
        name=_STRING, signerName=_STRING, path=_STRING, optional=_BOOLEAN, labelSelector=_LABEL_SELECTOR
    ),
)
_VOLUME: Final = _object(
    name=_STRING,
    configMap=_object(name=_STRING, items=_ITEMS, defaultMode=_INTEGER, optional=_BOOLEAN),
    secret=_object(secretName=_STRING, items=_ITEMS, defaultMode=_INTEGER, optional=_BOOLEAN),
    projected=_object(sources=_list(_PROJECTED), defaultMode=_INTEGER),
    downwardAPI=_object(items=_POD_FILES, defaultMode=_INTEGER),
    emptyDir=_object(medium=_STRING, sizeLimit=_QUANTITY),
    hostPath=_object(path=_STRING, type=_STRING),
    image=_object(reference=_STRING, pullPolicy=_STRING),
    persistentVolumeClaim=_object(claimName=_STRING, readOnly=_BOOLEAN),
    ephemeral=_object(volumeClaimTemplate=_CLAIM),
    nfs=_object(server=_STRING, path=_STRING, readOnly=_BOOLEAN),
    iscsi=_object(
        targetPortal=_STRING,
        iqn=_STRING,
        lun=_INTEGER,
        iscsiInterface=_STRING,
        fsType=_STRING,
        readOnly=_BOOLEAN,
        portals=_STRINGS,
        chapAuthDiscovery=_BOOLEAN,
        chapAuthSession=_BOOLEAN,
        secretRef=_SECRET,
        initiatorName=_STRING,
    ),
    fc=_object(targetWWNs=_STRINGS, lun=_INTEGER, fsType=_STRING, readOnly=_BOOLEAN, wwids=_STRINGS),
    csi=_object(
        driver=_STRING,
        readOnly=_BOOLEAN,
        fsType=_STRING,
        volumeAttributes=_STRING_MAP,
        nodePublishSecretRef=_SECRET,
    ),
)

Affinity = Annotated[dict[str, Any], WithJsonSchema(_AFFINITY)]
"""`affinity` of a pod."""

Toleration = Annotated[dict[str, Any], WithJsonSchema(_TOLERATION)]
"""One of a pod's `tolerations`."""

TopologySpread = Annotated[dict[str, Any], WithJsonSchema(_TOPOLOGY_SPREAD)]
"""One of a pod's `topologySpreadConstraints`."""

ValueFrom = Annotated[dict[str, Any], WithJsonSchema(_VALUE_FROM)]
"""`valueFrom` of an environment variable."""

VolumeMount = Annotated[dict[str, Any], WithJsonSchema(_VOLUME_MOUNT)]
"""One of a container's `volumeMounts`."""

Volume = Annotated[dict[str, Any], WithJsonSchema(_VOLUME)]
"""One of a pod's `volumes`; drivers that Kubernetes has removed or moved to CSI are left out."""


class Resources(ApiModel):
    """Compute resources of an engine's container."""

    requests: Annotated[dict[str, Quantity], Field(max_length=16)] = Field(
        default_factory=dict, description="What is reserved for the engine."
    )
    limits: Annotated[dict[str, Quantity], Field(max_length=16)] = Field(
        default_factory=dict, description="Most that the engine may use; GPUs (`nvidia.com/gpu`) go here."
    )


class ResourceClaim(ApiModel):
    """A claim on devices that a driver allocates (dynamic resource allocation)."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "has(self.resourceClaimName) != has(self.resourceClaimTemplateName)",
                "set exactly one of resourceClaimName and resourceClaimTemplateName in each of spec.resourceClaims: a "
                "template makes a claim for each engine",
            )
        )
    )

    name: Annotated[str, Field(min_length=1, max_length=63)] = Field(
        description="Name of the claim within the pod.",
        json_schema_extra=rules(
            rule(
                f"self.matches('{LABEL}')",
                "each name of spec.resourceClaims must hold only lower-case letters, digits and '-': rename the claim",
            )
        ),
    )
    resource_claim_name: Name | None = Field(
        default=None,
        description="A ResourceClaim of the namespace, which all engines share.",
        json_schema_extra=an_object("resourceClaimName of each of spec.resourceClaims"),
    )
    resource_claim_template_name: Name | None = Field(
        default=None,
        description="A ResourceClaimTemplate of the namespace, from which each engine gets a claim of its own.",
        json_schema_extra=an_object("resourceClaimTemplateName of each of spec.resourceClaims"),
    )
    request: Annotated[str, Field(max_length=63)] = Field(
        default="", description="The request of the claim whose devices the engine uses; empty: all of them."
    )
