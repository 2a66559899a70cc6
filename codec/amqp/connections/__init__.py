"""TCP connections that may carry AMQP: how they begin and end, what is known of them, and their state as a value."""
