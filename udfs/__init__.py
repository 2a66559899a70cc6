"""Arrow batches in, Arrow batches out, as Spark calls them: data sources, the decoder, SQL functions."""
