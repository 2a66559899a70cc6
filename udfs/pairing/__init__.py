"""Messages in, message flows out: keys, buckets, pairs."""
