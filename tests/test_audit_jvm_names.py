"""Names of the JVM that pyspark looks up: once each, as the messages to the JVM show."""

from __future__ import annotations

from typing import Any

import pytest
from py4j.clientserver import JavaClient  # type: ignore[import-untyped]
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pipeline.jvm_names import remember

LOOKS_UP, CALLS = "r", "c"  # first letters of messages, py4j.protocol


@pytest.fixture
def sent(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The messages about functions from now on."""
    remember()
    F.col("known")
    messages: list[str] = []
    send = JavaClient.send_command

    def noted(self: Any, command: str, *rest: Any, **more: Any) -> Any:
        if "functions" in command:
            messages.append(command[0])
        return send(self, command, *rest, **more)

    monkeypatch.setattr(JavaClient, "send_command", noted)
    return messages


def test_a_function_that_is_known_is_only_called(sent: list[str]) -> None:
    assert str(F.col("a")) == "Column<'a'>"
    assert sent == [CALLS]


def test_a_function_that_is_new_is_looked_up_once(sent: list[str]) -> None:
    for _ in range(2):
        assert str(F.cbrt(F.lit(8))) == "Column<'cbrt(8)'>"
    assert sent.count(CALLS) == 4
    assert sent.count(LOOKS_UP) <= 2  # lit and cbrt, if nobody has asked before


def test_a_name_that_there_is_not_is_none_as_before(spark: SparkSession) -> None:
    remember()
    remember()
    with pytest.raises(Exception, match="does not exist in the JVM"):
        getattr(spark._jvm, "functions").no_such_function  # noqa: B009, B018
