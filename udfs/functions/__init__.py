"""SQL functions for AMQP that lies in somebody's own tables: arrays of a column in, an array out, as Spark calls them.

`catalogue` lists them all with their names; `udfs.register(spark)` makes them known to a session.
"""
