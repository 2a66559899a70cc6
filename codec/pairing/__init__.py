"""Pairs deliveries with publishes, across connections."""
