"""The lake: Delta tables to which each batch of an ingest appends, with open connections carried from one to the next.

`layout` says what a lake consists of, `log` keeps the Delta logs, `journal` makes a batch part of it as a whole,
`reading` gives its tables to Spark, `house` keeps it in order.
"""
