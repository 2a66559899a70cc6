"""What performatives, controls and commands do to sessions, links and messages: AMQP 0-10 and 1.0."""
