"""What methods do to the channels, consumers and messages of a connection: AMQP 0-8, 0-9, 0-9-1."""
