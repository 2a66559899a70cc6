"""Arrow batches in, Arrow batches out, as Spark or a process of this machine calls them.

In the order of the data: `source` (captures -> runs of segments), `decode` (runs -> frames), `conversation` (frames ->
what trackers know), `tables` (the rows of all tables), `sink` (Parquet files), `pairing` (message_flows), `findings`
(rules). `functions` are SQL functions for tables of the user. Under all of them: `arrow` and `workers`. `warm` compiles
all kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from udfs.workers.process_setup import collect_less, interpret_while_cold, restore_umask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

restore_umask()  # before kernels are compiled and cached
collect_less()
interpret_while_cold()


def register(spark: SparkSession, key: str | bytes | None = None) -> None:
    """Make the SQL functions (`amqp_frame`, `amqp_redact` ... docs/functions.md) and the data source `pcap` known to a
    classic or Connect session.

    `key`: 32 bytes or a passphrase for amqp_anonymise_ip and amqp_pseudonym, where a query gives none.
    """
    # workers that only decode captures need none of this
    from udfs.functions.catalogue import register
    from udfs.source.packets import PcapSource

    register(spark, key)
    spark.dataSource.register(PcapSource)
    # Packets that a query filters out are not read; Spark refuses data sources that can do so while this is off.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
