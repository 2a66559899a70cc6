"""SQL functions for AMQP data in tables of the user: each takes Arrow arrays of columns and returns an array.

`catalogue` lists them with their names; `udfs.register(spark)` registers them in a session. Read `decode_functions`,
then `privacy_functions`.
"""
