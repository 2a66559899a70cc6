"""Tables as files: atomic replacement of a directory, private scratch directories, Parquet options."""
