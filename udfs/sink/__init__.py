"""Parquet files as Python workers write them."""
