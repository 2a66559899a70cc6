"""The way into the codec: segments of connections, or some bytes, to batches of rows."""
