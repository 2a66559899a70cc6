"""From captures to decoded rows, and the tables planned on them."""
