"""Where work runs: a Spark session, or processes of this machine."""
