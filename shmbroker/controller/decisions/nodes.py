"""The members of the cluster: UnregisterBroker, and brokers that the family would lack.

Brokers register as they start (`Membership.register_broker`); one that is left of a larger
family may be unregistered. Source: Kafka's `ReplicationControlManager`.
"""

from __future__ import annotations

from shmbroker.controller.decisions.in_sync import broker_gone
from shmbroker.errors import ConfigFault
from shmbroker.security.acls import ALL, ALLOW, ALTER, CLUSTER
from shmbroker.settings.table import STANDARD_AUTHORIZER
from shmbroker.wire.error_codes import (
    BROKER_ID_NOT_REGISTERED,
    INVALID_REQUEST,
    NONE,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

    from shmbroker.controller.decisions.cluster_state import ClusterState
    from shmbroker.metadata.image import MetadataImage
    from shmbroker.metadata.record import MetadataRecord
    from shmbroker.settings.broker_config import BrokerConfig


def unregister_broker(
    request: dict[str, Any], cluster: ClusterState
) -> tuple[list[MetadataRecord], dict[str, Any]]:
    """UnregisterBroker v0: (records, response).

    Unlike in Kafka, where a broker that runs may be unregistered and only comes back with its next
    start, brokers of this family stay; they register with it.
    """
    broker_id = request["broker_id"]
    broker = cluster.image.brokers.get(broker_id)
    error, message = NONE, None
    records: list[MetadataRecord] = []
    if broker is None:
        error, message = (
            BROKER_ID_NOT_REGISTERED,
            f"Broker ID {broker_id} is not currently registered",
        )
    elif broker_id in cluster.config.broker_ids:
        error, message = INVALID_REQUEST, f"Broker {broker_id} is a part of this shmbroker."
    else:
        records += broker_gone(cluster, broker_id, for_good=True)
        removal = {"broker_id": broker_id, "broker_epoch": broker.broker_epoch}
        records.append(("UnregisterBrokerRecord", 0, removal))
    return records, {"throttle_time_ms": 0, "error_code": error, "error_message": message}


def refuse_unasked_acls(image: MetadataImage, config: BrokerConfig) -> None:
    """ConfigFault if there are ACLs that nobody would ask for: what they close would be open. Who
    says that there is no authorizer has it so."""
    if image.security.acls and "authorizer.class.name" not in config.static:
        raise ConfigFault(
            f"the metadata log holds {len(image.security.acls)} ACLs, but authorizer.class.name is "
            f"not set: start with --set authorizer.class.name={STANDARD_AUTHORIZER} and say with "
            "--set super.users= who may do everything, or open all with --set "
            "authorizer.class.name="
        )


def shuts_out_all(image: MetadataImage, config: BrokerConfig) -> str:
    """A sentence where nobody may add an ACL, so that no right can ever be given; else ""."""
    if not config.needs_acls:
        return ""
    if any(
        acl.resource_type == CLUSTER and acl.permission == ALLOW and acl.operation in (ALL, ALTER)
        for acl in image.security.acls.values()
    ):
        return ""
    return (
        "nobody may add an ACL: there is an authorizer, super.users is empty, and no ACL allows "
        "anybody to alter the cluster; start with --set super.users=User:NAME to let somebody in"
    )


def refuse_missing_brokers(image: MetadataImage, broker_ids: Collection[int]) -> None:
    """ConfigFault if others than `broker_ids`, the brokers of the family, hold replicas."""
    missing = sorted(image.placed_on().difference(broker_ids))
    if not missing:
        return
    higher = sum(broker_id > max(broker_ids) for broker_id in missing)
    if higher < len(missing):
        fix = f"start with the directory of node {missing[0]} as well"
    else:
        # The ids follow one another, so that many more have the last of them.
        fix = f"start with at least --io-workers {len(broker_ids) + missing[-1] - max(broker_ids)}"
    raise ConfigFault(f"broker {missing[-1]} holds replicas, but would not run: {fix}")
