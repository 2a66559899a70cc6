"""Captures of scenes at a broker whose course is known: scripts, a model of a broker, and writers for every version."""
