"""The tables: DataFrame -> DataFrame, one file a table, and the steps that several of them share."""
