"""AMQP 0-8, 0-9 and 0-9-1: tables of the specifications, frames, methods, contents, field tables."""
