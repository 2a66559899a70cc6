"""Output: where it goes (`location`), how tables replace older ones (`swap`), files of tables (`parquet_tables`),
values as text and HTML (`formatting`), colours and sizes of charts (`theme`)."""
