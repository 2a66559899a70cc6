"""AMQP 1.0: tables of the specification, frames, deliveries, sections, values."""
