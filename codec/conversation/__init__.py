"""What follows from the frames of a connection: channels or sessions, links, messages and their outcomes.

    states       the states of many connections as arrays, which are saved and restored
    settlement   which event settles which message, in all versions
    channel_*    0-8, 0-9, 0-9-1. Read channel_state, then channel_tracker (what each method does), channel_batches
                 (many connections), channel_outcomes (of messages; returns), channel_stalls
    session_*    0-10, 1.0. Read session_state (and what each performative, control and command does, as data), then
                 session_tracker, session_lookup (whose frame it is), session_links, session_transfers,
                 session_batches (many connections), session_outcomes
    oddities     what a side does against the rules, as rows; v0_10_oddities and v1_0_oddities note them as the
                 session tracker follows the frames, unanswered what is owed at the end

A version is data (`session_state.ROLES`, `channel_state.Roles`), not a code path. State is in arrays of int64 records;
a frame costs constant work.
"""
