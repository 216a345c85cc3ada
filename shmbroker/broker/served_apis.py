"""What a broker executes: the API modules of I/O workers, by their key.

Rules of this file:
* Answers about groups and transactions are held until the in-sync replicas have what the log held
  when they were given (`groups.held_answers`). One that is given in steps is refused if its
  coordinator is another one before the last.
* Offset commits and fetches whose bytes came before go past their modules (`known_requests`).
"""

from __future__ import annotations

from functools import partial

from shmbroker.apis import table
from shmbroker.groups.known_requests import KnownCommits, KnownFetches
from shmbroker.wire.api_keys import OFFSET_COMMIT, OFFSET_FETCH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.apis.contexts import BrokerApi
    from shmbroker.broker.broker import Broker
    from shmbroker.groups.coordinator import GroupCoordinator
    from shmbroker.groups.transactions.coordinator import TransactionCoordinator
    from shmbroker.ipc.operation_adapter import Call, Handler, Steps


def serve_apis(broker: Broker) -> None:
    """Have the executor of a broker, whose coordinators are built, answer forwarded requests."""
    executor, metadata = broker.executor, broker.link.follower
    executor.handlers = {
        module.API_KEY: (module.NAME, handler_of(broker, module))
        for module in table.IN_IO_WORKER + table.ON_CONTROL_SOCKET
    }
    executor.shortcuts = {
        OFFSET_COMMIT: KnownCommits(broker.groups, metadata),
        OFFSET_FETCH: KnownFetches(broker.groups, metadata),
    }


def handler_of(broker: Broker, module: BrokerApi) -> Handler:
    """What answers one API; of a coordinator's, with what holds the answer and for which names."""
    coordinator: GroupCoordinator | TransactionCoordinator
    if module.API_KEY in table.GROUPS_OF:
        coordinator, names_of = broker.groups, table.GROUPS_OF[module.API_KEY]
    elif module.API_KEY in table.TRANSACTIONS_OF:
        coordinator, names_of = broker.transactions, table.TRANSACTIONS_OF[module.API_KEY]
    else:
        return partial(module.answer, broker)

    def handle(call: Call, body: dict[str, Any]) -> dict[str, Any] | Steps | None:
        call.hold = coordinator.hold
        call.hold_names = names_of(body)
        answer = module.answer(broker, call, body)
        if answer is None or isinstance(answer, dict):
            return answer
        return coordinator.while_here(call.hold_names, answer)

    return handle
