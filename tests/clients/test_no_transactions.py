"""A transactional producer is told at once that there are no transactions."""

import asyncio
from typing import Any

import pytest

GIVES_UP_S = 60.0
"""What a client that retries would take."""


def confluent(address: str) -> str:
    from confluent_kafka import KafkaException, Producer

    producer = Producer({"bootstrap.servers": address, "transactional.id": "x"})
    with pytest.raises(KafkaException) as refused:
        producer.init_transactions(GIVES_UP_S)
    error = refused.value.args[0]
    assert error.fatal()
    assert "shmbroker has no transactions yet" in error.str()
    return str(error.name())


def kafka_python(address: str) -> str:
    from kafka import KafkaProducer
    from kafka.errors import KafkaError

    limits: dict[str, Any] = {"max_block_ms": GIVES_UP_S * 1000}
    producer = KafkaProducer(bootstrap_servers=address, transactional_id="x", **limits)
    with pytest.raises(KafkaError) as refused:
        producer.init_transactions()
    producer.close(timeout=0)
    return str(refused.value)


def aiokafka(address: str) -> str:
    from aiokafka import AIOKafkaProducer
    from aiokafka.errors import KafkaError

    async def start() -> str:
        producer = AIOKafkaProducer(bootstrap_servers=address, transactional_id="x")
        with pytest.raises(KafkaError) as refused:
            await asyncio.wait_for(producer.start(), GIVES_UP_S)
        await producer.stop()
        return str(refused.value)

    return asyncio.run(start())


@pytest.mark.parametrize("init", [confluent, kafka_python, aiokafka])
def test_init_transactions_fails_at_once(init: Any, address: str) -> None:
    """And not with what a client says when its time is over."""
    reason = init(address).lower().replace("_", "")
    assert "transactionalid" in reason and "authorizationfailed" in reason
