"""Pairs publishes with deliveries: rows of table message_flows, and the parts of their latency.

In the order of the work: `brokers` (which connections share a broker), `schemas` and `pairable` (messages -> rows to
pair, by the hash of a key), `hash_partitions` (their shuffle), `stream_messages` (offsets in streams), `flows` (the
pairs of a bucket). Beside these `replies` (latencies of RPC), `stalled_messages` and `parts` (who took each
nanosecond), and `lake_pairing` (messages that a later batch may pair).
"""
