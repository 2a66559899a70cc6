"""Which delivery is of which publish, across connections."""
