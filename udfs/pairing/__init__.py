"""Pairs publishes with deliveries: rows of table message_flows."""
