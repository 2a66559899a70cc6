"""The command line: `cli`, and a module for each command, of its name, with its arguments, messages and exit codes."""
