"""The command line: one module per job, with its arguments, messages and exit codes."""
