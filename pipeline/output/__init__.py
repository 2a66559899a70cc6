"""Tables as files (`parquet`), where they are (`location`) and how they replace older ones (`swap`); values as text."""
