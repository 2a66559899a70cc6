"""What pyspark asks the JVM about names, asked once.

For each column it looks up `functions`, then `functions.col`, and calls that: three messages, of which the first two
make the JVM search its classes, and always have the same answer. They would be a third of the messages of an audit.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from pyspark import SparkContext

# Classes by the names that pyspark looks them up under, on the way to a DataFrame.
CLASSES = (
    "functions",
    "org.apache.spark.sql.functions",
    "org.apache.spark.sql.expressions.Window",
    "org.apache.spark.sql.types.Metadata",
    "org.apache.spark.sql.classic.SparkSession",
    "PythonUtils",
)


@cache
def remembered() -> tuple[type, type]:
    """py4j's kind of a class of the JVM, and one that looks up each of its members once."""
    from py4j.java_gateway import JavaClass  # type: ignore[import-untyped]  # comes with pyspark

    class Remembered(JavaClass):  # type: ignore[misc]
        def __getattr__(self, name: str) -> Any:
            member = super().__getattr__(name)
            if not name.startswith("_"):
                self.__dict__[name] = member
            return member

    return JavaClass, Remembered


def remember() -> None:
    """Look up CLASSES once for all, in the driver's JVM; on a Connect client, which has none, nothing."""
    context = SparkContext._active_spark_context
    if context is None or context._jvm is None:
        return
    plain, remembering = remembered()
    for name in CLASSES:
        found = getattr(context._jvm, name)
        if type(found) is plain:
            found.__class__ = remembering
            setattr(context._jvm, name, found)
