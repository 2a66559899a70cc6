"""The way into the codec: segments of connections, or some bytes, to batches of rows.

    decoder      segments of many connections -> batches of rows, and what is known of connections that have ended
    batches      a batch: the bytes of its rows become VARIANT values
    standalone   frames or values that belong to no connection
    readable     frames at a prompt

No other folder of `codec` imports this one.
"""
