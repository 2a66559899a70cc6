"""Tables as files: a directory that is swapped whole, private scratch, Parquet options."""
