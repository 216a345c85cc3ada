"""A broker for other people's tests: `with Broker() as broker: broker.address`.

`plugin` has the fixtures for pytest, `embedded` the command for tests in other languages.
"""

from shmbroker.testing.broker import Broker, Trouble

__all__ = ["Broker", "Trouble"]
