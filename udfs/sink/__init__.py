"""Parquet files as Python workers write them: `parquet` is a file, `writers` are the functions of workers."""
