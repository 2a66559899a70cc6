"""What a worker process sets up, what it is told, and what it reports."""
