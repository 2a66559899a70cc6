"""From the command line to files: one module a job, each with its arguments, its messages and its exit code."""
