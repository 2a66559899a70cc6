"""TLS between TCP and AMQP: hellos, key logs, key schedule, ciphers, and the records of a connection decrypted."""
