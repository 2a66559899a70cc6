"""Hashes in kernels: SHA-256 of bodies, hashes of rows, hash tables."""
