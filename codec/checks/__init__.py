"""Finds oddities in the sequence of performatives of AMQP 1.0, and of controls and commands of 0-10.

    state   arrays, rows and oddities
    v1_0    AMQP 1.0: connections and sessions, links, deliveries
    v0_10   AMQP 0-10: sessions, subscriptions

The caller gives rows of connections, each connection in the order of its frames; `follow` of a version notes oddities.
Checks do not consider missing bytes: the audit decides which of them need a complete capture. Cost: constant per row,
except for ranges of deliveries, which may take STEPS_A_ROW a row.
"""
