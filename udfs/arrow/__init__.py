"""Arrow helpers.

`types` (types of columns, batches with the columns of a schema), `arrays` (columns as NumPy arrays; rows joined, taken
and looked up), `fields` (fields of VARIANT columns). Then `former`, which reads files of earlier releases,
`spill_files`, rows in temporary files, and `spark_schemas`, the only one that imports pyspark.
"""
