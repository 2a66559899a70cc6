"""The questions of docs/recipes.md: SQL and Python give the documented answer, on a capture with known contents."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from deployment import answer, blocks
from pyspark.sql import SparkSession
from recipe_connections import write

import pipeline
from pipeline.run.local_processes import LocalProcesses

PAGE = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text()
RECIPE = re.compile(r"^## (.*?)\n.*?^```sql\n(.*?)^```\n\n^```python\n(.*?)^```\n(?:\n((?:\|[^\n]*\n)+))?", re.M | re.S)
RECIPES = RECIPE.findall(PAGE)

# Each story as `recipe_connections` tells it.
KNOWN = {
    "closed": "| shop | server | 320 | CONNECTION_FORCED - broker forced connection closure | fin | server |\n"
    "| shop-1.0 | server |  | amqp:connection:forced: the broker shuts down | fin | server |",
    "no heartbeat": "| reports | 0-9-1 | 0 | 60 |\n| client-container | 1.0 |  |  |",
    "not acknowledged": "| billing | orders | bills | 2 |",
    "returned": "| orders-api |  | order | o-4 | 312 | NO_ROUTE |",
    "other arguments": "| orders | orders-api | yes | reports | no |",
    "redelivered": "| jobs | j-1 | 4 | worker |",
    "RabbitMQ 4": "| R4-01 | reports | A queue is declared neither durable nor exclusive. | orders |",
    "dead-lettered": "| j-0 | jobs | expired | jobs | worker |",
    "prefetch": "| billing | orders | bills |",
    "again and again": "| cron | 127.0.1.2 | 2023-11-14 22:13:00 | 12 |",
    "links of 1.0": "| client-container | receiver | receiver-1 | amqp:not-found: no queue 'none' |",
}


@pytest.fixture(scope="module")
def names(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the first snippet of the page defines, for the tables of the capture."""
    folder = tmp_path_factory.mktemp("recipes")
    write(folder / "shop.pcap")
    pipeline.write(LocalProcesses(1), str(folder / "shop.pcap"), str(folder / "out"))
    found: dict[str, Any] = {}
    exec(compile(blocks(PAGE, "python")[0].replace('"out"', f'"{folder}/out"'), "recipes.md", "exec"), found)
    return found


@pytest.mark.parametrize(("question", "sql", "python", "expected"), RECIPES, ids=[recipe[0] for recipe in RECIPES])
def test_sql_and_python_give_the_answer_shown(
    names: dict[str, Any], question: str, sql: str, python: str, expected: str
) -> None:
    assert answer(names["spark"].sql(sql)) == expected.rstrip()
    defined = dict(names)
    exec(compile(python, "recipes.md", "exec"), defined)
    assert answer(defined["answer"]) == expected.rstrip()


def test_the_answers_agree_with_the_capture() -> None:
    assert len(RECIPES) == 12
    for words, line in KNOWN.items():
        (text,) = [text for question, _, _, text in RECIPES if words in question]
        assert text.splitlines()[2:] == line.splitlines()
    # Of three orders one was acknowledged: published in step 16, a step being 1 ms, acknowledged 1,520 ms after the
    # capture began (billing begins after 1 s, and waits for 500 ms behind its step 20).
    (latency,) = [text for question, _, _, text in RECIPES if "from the publish" in question]
    assert latency.splitlines()[2:] == ["| orders | 1 | 1504.0 |"]
