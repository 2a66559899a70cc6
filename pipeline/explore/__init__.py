"""Questions about tables that are written: SQL, summaries, other names of columns, and how tables are loaded."""
