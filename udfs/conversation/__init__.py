"""Follows the frames of connections: Arrow batches in, rows of tables out, with the kernels of `codec.conversation`."""
