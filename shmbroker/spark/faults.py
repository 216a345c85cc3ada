"""Faults of the Spark source, beside those of `shmbroker.errors`."""

from shmbroker.errors import Fault, StorageFault


class BrokerFault(Fault):
    """The broker can't be asked, or refuses; the message says which broker, and what to do."""


class DataLossFault(StorageFault):
    """Records that the query must read are gone; the message names the exact range."""
