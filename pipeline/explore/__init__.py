"""Questions about tables that are written.

`loading` opens them as DataFrames, `duckdb_tables` as views of DuckDB. `summaries` (latency, rates, backlog) and
`views` (columns with the names of OpenTelemetry, Elastic Common Schema, Zeek) are made of DataFrames.
"""
