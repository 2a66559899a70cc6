"""Compiling, linking and caching of kernels, and the limits of the decoder."""
