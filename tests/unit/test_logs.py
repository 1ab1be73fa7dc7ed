"""What oslo.messaging may say of a broker that is lost."""

import logging

from oslo_messaging._drivers import impl_rabbit
import pytest

from musterbook import logs

UNREACHABLE = "[%s] AMQP server on h is unreachable: no. Trying again in 1 seconds."
RECONNECTED = "[%s] Reconnected to AMQP server on h via [amqp] client with port 1."


@pytest.fixture
def outage() -> logs.BrokerOutage:
    return logs.BrokerOutage()


def news(outage: logs.BrokerOutage, level: int, text: str) -> bool:
    record = logging.LogRecord("x", level, "f", 1, text, ("id",), None)
    return outage.filter(record)


def test_the_name_is_the_one_that_is_logged_under() -> None:
    assert impl_rabbit.LOG.logger.name == logs._RABBIT


def test_an_outage_is_told_when_it_begins_and_ends(outage: logs.BrokerOutage) -> None:
    for _ in range(2):
        assert news(outage, logging.ERROR, UNREACHABLE)
        assert not news(outage, logging.ERROR, UNREACHABLE)
        assert not news(outage, logging.ERROR, "Connection failed: no")
        assert news(outage, logging.INFO, RECONNECTED)
        assert not news(outage, logging.INFO, RECONNECTED)


def test_other_errors_are_told(outage: logs.BrokerOutage) -> None:
    assert news(outage, logging.ERROR, "The broker has blocked the connection")
    assert not news(outage, logging.WARNING, "something else")


def test_the_words_are_the_library_s_own() -> None:
    with open(impl_rabbit.__file__, encoding="utf-8") as file:
        source = file.read()
    for words in (*logs._ATTEMPTS, logs._RECONNECTED):
        assert words in " ".join(source.replace("'", "").split())
