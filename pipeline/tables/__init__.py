"""The tables: data about methods and columns for the workers, and what Spark derives from several connections."""
