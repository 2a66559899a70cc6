"""From captures to tables: decoding, writing, what is derived of several connections, and the tables as DataFrames.

Read `decoding`, then `write_tables`, `message_flows` and `dataframes`. Work runs where `pipeline.run` says.
"""
