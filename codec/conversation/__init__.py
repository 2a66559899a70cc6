"""What follows from the frames of a connection: channels or sessions, links, messages and their outcomes.

    channels/    0-8, 0-9, 0-9-1: requests and replies, consumers, returns, settlements
    sessions/    0-10, 1.0: links, credit, transfers, transactions
    settlement   which event settles which message; settled: of all messages at once
    states       the states of many connections as arrays, which are saved and restored

A version is data (`sessions.semantics.ROLES`, `channels.state.Roles`), not a code path. State is in arrays of int64
records; a frame costs constant work.
"""
