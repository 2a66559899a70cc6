"""The functions in SQL, on a classic session and over Spark Connect; what is documented of them."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import classic_frames
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, StringType, StructType

import udfs
from codec.pseudonyms import key_of, pseudonym
from udfs.functions.catalogue import FUNCTIONS, markdown

ROOT = Path(__file__).parents[2]
EXAMPLES = "SELECT " + ", ".join(f"{function.example} AS {function.name}" for function in FUNCTIONS)
ACK = classic_frames.method("0-9-1", "basic.ack", 3, delivery_tag=7)


@pytest.fixture(scope="module")
def sql(spark: SparkSession) -> Iterator[SparkSession]:
    """A session that knows the functions, with a key."""
    udfs.register(spark, key="a passphrase")
    yield spark
    for function in FUNCTIONS:
        spark.sql(f"DROP TEMPORARY FUNCTION {function.name}")


@pytest.fixture(scope="module")
def stored(sql: SparkSession) -> DataFrame:
    """Somebody's table: frames of two versions, and some that are none, in more than one partition."""
    header = classic_frames.protocol_header("0-9")
    rows = [(ACK, "0-9-1"), (header, "0-9"), (b"junk", "0-9-1"), (None, "0-9-1"), (ACK, None)] * 20
    table = sql.createDataFrame(rows, "data binary, version string").repartition(3)
    table.createOrReplaceTempView("stored")
    return table


def test_every_example_gives_the_documented_result(sql: SparkSession) -> None:
    row = sql.sql(EXAMPLES).collect()[0]
    assert row.asDict() == {function.name: function.result for function in FUNCTIONS}


def test_frames_of_a_table_in_one_query(sql: SparkSession, stored: DataFrame) -> None:
    found = sql.sql(
        """SELECT f.name, f.status, f.arguments:delivery_tag::bigint AS tag, f.arguments:revision::int AS revision,
                  amqp_version(data) AS spoken, count(*) AS n
           FROM (SELECT data, amqp_frame(data, version) AS f FROM stored) GROUP BY ALL ORDER BY ALL"""
    ).collect()
    columns = ("name", "status", "tag", "revision", "spoken", "n")
    assert [tuple(row[name] for name in columns) for row in found] == [
        (None, None, None, None, None, 20),
        (None, None, None, None, "0-9-1", 20),
        (None, "malformed", None, None, None, 20),
        (None, "ok", None, 9, "0-9", 20),
        ("basic.ack", "ok", 7, None, "0-9-1", 20),
    ]


def test_arguments_by_name_and_a_key_of_the_session_or_of_the_query(sql: SparkSession) -> None:
    row = sql.sql(
        """SELECT amqp_pseudonym('orders', 'queue') AS ours, amqp_pseudonym('orders', 'queue', 'other') AS other,
                  amqp_pseudonym('orders', prefix => 'queue', key => 'a passphrase') AS named,
                  amqp_anonymise_ip(ip => '10.0.0.1') = amqp_anonymise_ip('10.0.0.1', 'a passphrase') AS same,
                  amqp_community_id('10.0.0.1', 1, '10.0.0.2', 2, seed => 1) AS seeded"""
    ).collect()[0]
    assert row.ours == row.named == pseudonym("orders", key_of(b"a passphrase"), "queue")
    assert row.other == pseudonym("orders", key_of(b"other"), "queue")
    assert row.same
    assert row.seeded.startswith("1:")


def test_a_key_of_the_spark_session_is_in_no_plan(sql: SparkSession) -> None:
    plan = sql.sql("SELECT amqp_pseudonym(string(id), 'queue') FROM range(1)")._jdf.queryExecution().toString()
    assert "amqp_pseudonym" in plan
    assert "passphrase" not in plan
    assert key_of(b"a passphrase").hex() not in plan.lower()


CONNECT = f"""
import json, sys
import udfs
from pipeline.run.session import session
spark = session("connect", **{{"spark.remote": "local[1]", "spark.ui.enabled": "false"}})
udfs.register(spark)
row = spark.sql(sys.argv[1] + ", amqp_frame(X'{ACK.hex()}', '0-9-1').arguments AS arguments").collect()[0].asDict()
print(json.dumps([type(spark).__module__, row.pop("arguments").toPython(), row]))
spark.stop()
"""


def test_all_functions_over_spark_connect() -> None:
    """In a process of its own: one with a classic session cannot have the other kind."""
    pytest.importorskip("grpc", reason="Spark Connect needs grpcio")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-c", CONNECT, EXAMPLES]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-2000:]
    session, arguments, results = json.loads(ran.stdout.splitlines()[-1])
    assert session.startswith("pyspark.sql.connect")
    assert arguments == {"delivery_tag": 7, "multiple": False}
    assert results == {function.name: function.result for function in FUNCTIONS}


def test_the_documented_table_is_the_catalogue() -> None:
    assert markdown() in (ROOT / "docs" / "functions.md").read_text()


def test_every_function_documents_its_arguments() -> None:
    names = [function.name for function in FUNCTIONS]
    assert len(set(names)) == len(names)
    for function in FUNCTIONS:
        assert function.name.startswith("amqp_")
        assert len(function.types) == len(inspect.signature(function.of).parameters)
        assert all(argument.annotation == "pa.Array" for argument in function.arguments)
        assert (
            isinstance(function.returns, StringType | BinaryType | StructType)
            or function.returns.typeName() == "variant"
        )
