"""What all jobs share: their arguments, messages, exit codes, and the summary that they print."""
