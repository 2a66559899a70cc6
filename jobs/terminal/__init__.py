"""What all jobs share: `running` (parser, exit codes, errors), `arguments`, `console` (status lines, tables as text)
and `summary` (what a decode prints)."""
