"""Feature levels: what ApiVersions offers and UpdateFeatures may change.

`MetadataImage.features` holds the finalised levels as the log has them; a feature that isn't there
has level 0. The log also carries levels of features that aren't served (a directory must stay one
that Kafka takes), so what is served shows in SUPPORTED_FEATURES only.

Source: Kafka's `Feature`, `MetadataVersion`; KIP-584.
"""

METADATA_VERSION = "metadata.version"
GROUP_VERSION = "group.version"
"""The feature that allows groups of the protocol of KIP-848, from level 1 on."""
ELIGIBLE_LEADER_REPLICAS = "eligible.leader.replicas.version"
"""The feature that gives partitions eligible leader replicas (KIP-966), from level 1 on."""
TRANSACTION_VERSION = "transaction.version"
"""The feature of transactions. From level 1 on their log has newer records; from 2 on each end of a
transaction gives its producer a new epoch, and a batch adds its partition (KIP-890)."""

SUPPORTED_FEATURES = {
    # name: least and highest level that is served
    ELIGIBLE_LEADER_REPLICAS: (0, 1),
    GROUP_VERSION: (0, 1),
    METADATA_VERSION: (7, 29),
    TRANSACTION_VERSION: (0, 2),
}

KRAFT_VERSION = "kraft.version"
"""The feature that has the voters in the metadata log, from level 1 on. A family says itself who
its voters are: the level stays 0, whatever is asked for."""

CARRIED_FEATURES = {
    # name: least and highest level of Kafka's
    KRAFT_VERSION: (0, 1),
    "share.version": (0, 1),
    "streams.version": (0, 1),
}
"""Features that aren't served and not offered. UpdateFeatures takes their levels, for who asks for
all of a release; the levels count for a Kafka that goes on with the directory."""

METADATA_VERSION_OF_RECORDS = 23
"""The lowest metadata.version that has all the records and fields which are written here; between
it and the highest one nothing changes, so only there a downgrade loses nothing."""
