"""Finds oddities in the sequence of performatives of AMQP 1.0, and of controls and commands of 0-10.

    state: arrays and oddities      v1_0, links, deliveries: AMQP 1.0 (records_1_0: its rows and records)
    v0_10, subscriptions: AMQP 0-10 (records_0_10)

The caller gives rows of connections, each connection in the order of its frames; `follow` of a version notes oddities.
Checks do not consider missing bytes: the audit decides which of them need a complete capture. Cost: constant per row,
except for ranges of deliveries, which may take STEPS_A_ROW a row.
"""
