"""One TCP connection: segments of both directions in, ordered bytes and holes out."""
