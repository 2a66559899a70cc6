"""AMQP 0-10: tables of the specification, frames, segments, assemblies, values."""
