"""Hashes inside kernels: SHA-256 of bodies, hashes of rows, tables found by a key."""
