"""What follows from the frames of one connection whose channels are sessions (AMQP 0-10 and 1.0).

    state: records and columns          semantics: what a performative, control or command does, as data
    sessions, links, transfers: rules   tracker: one pass over the frames of connections, in order
    outcomes: what became of messages   credit: how long nothing could be sent over a subscription

One mechanism serves both versions: a version is a table (`semantics.ROLES`) and no branch in a kernel. State lies in
arrays of int64 records; a connection costs constant work a frame.
"""
