"""Tables as files (`parquet`), where they are (`place`) and how they replace older ones (`swap`); values as text."""
