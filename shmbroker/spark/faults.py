"""Faults of the Spark source, beside those of `shmbroker.errors`."""

from shmbroker.errors import Fault, StorageFault


class BrokerFault(Fault):
    """The broker can't be asked, or refuses; the message says which broker, and what to do."""


class LaterFault(BrokerFault):
    """What may work when tried again."""


class NoFilesFault(BrokerFault):
    """The broker's log files can't be opened from here; its records can still be fetched."""


class DataLossFault(StorageFault):
    """Records that the query must read are gone; the message names the exact range."""
