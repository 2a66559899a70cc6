"""The lake: Delta tables to which each batch of an ingest appends, with open connections carried from one to the next.

`layout`: what a lake consists of; `log`: the Delta logs; `batches`: the loop of an ingest; `batch`: one of its batches;
`work`: what Spark's workers do for it; `journal`: its atomic commit; `reading`: the tables as DataFrames.
"""
