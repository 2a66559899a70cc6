"""An application that audits the tables in a directory and writes the findings to a file: `audit.py TABLES FILE`."""

import sys

import pyarrow.parquet as pq

import pipeline
from pipeline.run.session import session

tables, file = sys.argv[1:]
spark = session("audit")
pq.write_table(pipeline.findings(pipeline.load(spark, tables)).toArrow(), file)
spark.stop()
