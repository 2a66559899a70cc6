"""Arrow helpers: types, rows, fields of VARIANT, words, batches that wait."""
