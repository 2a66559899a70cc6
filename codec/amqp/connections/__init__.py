"""TCP connections that may carry AMQP: their begin and end, their records, and their state as a value."""
