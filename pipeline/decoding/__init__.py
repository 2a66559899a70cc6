"""From captures to decoded rows, and lazy tables on top of them."""
