"""Arrow helpers: types, rows, fields of VARIANT, dictionary-encoded texts, hashes, temporary files."""
