"""What the stages of a finished job took, read from Spark's event log.

    for stage in stages(directory): print(stage.table, stage.part, stage.seconds)

A stage is identified by the table that its query writes, and its part: reading captures, decoding (which also writes
all that follows from single connections), or deriving.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NS_IN_S = 10**9
WRITES = re.compile(r"Arguments: (\S+)/([^/\s,]+), (?:false|true)")  # of InsertIntoHadoopFsRelationCommand
READS_CAPTURES = "Range"  # the numbers of what each task reads
DECODED = "decoded"
WRITERS = {"WriteTables": DECODED, "WriteFlows": "message_flows"}  # what Python workers write by themselves
WORKERS_WRITE = re.compile(rf"Arguments: ({'|'.join(WRITERS)})\(")
PYTHON_TIME = "time to execute Python code"  # a metric of Spark's, in ms


@dataclass(frozen=True)
class Stage:
    """The tasks of a stage. `part`: 'read', 'decode', 'derive'. `seconds`: with a core occupied; `python` and `jvm`
    (processor) seconds are parts of it."""

    table: str
    part: str
    seconds: float
    jvm: float
    python: float
    gc: float
    shuffle_written: int
    spilled: int
    written: int  # by Spark, not by Python workers


def settings(directory: Path) -> list[str]:
    """Arguments of spark-submit for an event log in this directory, which is created."""
    directory.mkdir()
    given = {"enabled": "true", "dir": directory.as_uri(), "compress": "false", "rolling.enabled": "false"}
    return [word for name, value in given.items() for word in ("--conf", f"spark.eventLog.{name}={value}")]


def events(directory: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(short name, event) of all logs under a directory, whether Spark rolled them over or not."""
    for log in sorted(path for path in directory.rglob("[!.]*") if path.is_file()):
        with log.open() as lines:
            for line in lines:
                event = json.loads(line)
                yield event["Event"].rpartition(".")[2], event


def stages(directory: Path) -> list[Stage]:
    """Every stage that ran, in order."""
    tables: dict[str, str] = {}
    of_stage: dict[int, str] = {}
    tasks: dict[int, list[dict[str, Any]]] = defaultdict(list)
    done: dict[int, dict[str, Any]] = {}
    for name, event in events(directory):
        if name == "SparkListenerSQLExecutionStart":
            plan = event["physicalPlanDescription"]
            target, writer = WRITES.search(plan), WORKERS_WRITE.search(plan)
            tables[str(event["executionId"])] = target[2] if target else WRITERS[writer[1]] if writer else ""
        elif name == "SparkListenerJobStart":
            query = event.get("Properties", {}).get("spark.sql.execution.id", "")
            for stage in event["Stage IDs"]:
                of_stage.setdefault(stage, tables.get(query, ""))
        elif name == "SparkListenerTaskEnd" and "Task Metrics" in event:
            tasks[event["Stage ID"]].append(event["Task Metrics"])
        elif name == "SparkListenerStageCompleted":
            done[event["Stage Info"]["Stage ID"]] = event["Stage Info"]
    return [stage_of(of_stage.get(number, ""), info, tasks[number]) for number, info in sorted(done.items())]


def stage_of(table: str, info: dict[str, Any], tasks: list[dict[str, Any]]) -> Stage:
    """One stage out of its own event and those of its tasks."""
    scopes = {json.loads(rdd["Scope"])["name"] for rdd in info["RDD Info"] if "Scope" in rdd}
    reads = READS_CAPTURES in scopes
    part = "read" if reads else "decode" if table == DECODED else "derive"
    python = sum(int(value["Value"]) for value in info.get("Accumulables", ()) if value.get("Name") == PYTHON_TIME)

    def total(*path: str) -> int:
        values: list[Any] = list(tasks)
        for key in path:
            values = [value[key] for value in values]
        return int(sum(values))

    return Stage(
        table=table,
        part=part,
        seconds=total("Executor Run Time") / 1000,
        jvm=total("Executor CPU Time") / NS_IN_S,
        python=python / 1000,
        gc=total("JVM GC Time") / 1000,
        shuffle_written=total("Shuffle Write Metrics", "Shuffle Bytes Written"),
        spilled=total("Disk Bytes Spilled"),
        written=total("Output Metrics", "Bytes Written"),
    )
