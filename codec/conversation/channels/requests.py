"""Requests and their answers.

Requests of one dialogue by one asker on one life of a channel are answered in order, so they wait in a queue. An answer
that finds none belongs to none (its request was not captured). Nothing is paired across a loss. With the request that
ends a transaction waits what was said in the transaction.
"""

from __future__ import annotations

from codec.compiler.kernel import kernel
from codec.conversation.channels.links import has_type, link_key
from codec.conversation.channels.pools import record_of, used_again
from codec.conversation.channels.results import ledger_of, write_event, write_reply
from codec.conversation.channels.state import (
    CONNECTION,
    DIALOGUES,
    FREE_PENDING,
    FREE_REQUEST,
    LOSSES,
    NONE,
    REQUESTS,
    TRANSACTED,
    UNKNOWN,
)
from codec.conversation.settlement import NO_RESULT
from codec.hashes.keyed import found, put

DIALOGUE_BITS = 16


@kernel
def _dialogue(s, channel, life, dialogue, asker):
    """The record of the requests that are open in a dialogue; those before a loss or of an earlier life are dropped."""
    numbers = s.numbers
    key = ((channel << 1 | asker) << DIALOGUE_BITS) | dialogue
    at = found(s.found_by, key)
    if at == NONE:
        at = numbers[DIALOGUES]
        numbers[DIALOGUES] += 1
        put(s.found_by, key, at)
        s.dialogues[at].head = NONE
    record = s.dialogues[at]
    if record.head != NONE and (record.life != life or record.losses != numbers[LOSSES]):
        request = record.head
        while request != NONE:
            used_again(s.pendings, s.requests[request].tx_head, numbers, FREE_PENDING)
            request = s.requests[request].next
        used_again(s.requests, record.head, numbers, FREE_REQUEST)
        record.head = NONE
    if record.head == NONE:
        record.life = life
        record.losses = numbers[LOSSES]
        record.tail = NONE
    return at


@kernel
def ask(s, rows, i, role, slot, link):
    """A request waits for its answer; the transaction that it ends goes with it."""
    at = record_of(s.requests, s.numbers, REQUESTS, FREE_REQUEST)
    request = s.requests[at]
    request.frame_no = rows.frame_no[i]
    request.ts_ns = rows.ts_ns[i]
    request.queue = rows.queue[i]
    request.queue_type = rows.queue_type[i] if role.declares else 0
    request.no_ack = rows.no_ack[i]
    request.link = link
    request.declares = NONE
    request.result = role.ends_transaction
    request.tx_first = slot.tx_first if role.ends_transaction else 0
    request.tx_last = slot.tx_last
    request.tx_head = slot.tx_head if role.ends_transaction else NONE
    request.next = NONE
    if role.ends_transaction:
        slot.tx_first = 0
        slot.tx_head = NONE
    record = s.dialogues[_dialogue(s, rows.channel[i], slot.life, role.dialogue, rows.sender[i])]
    if record.head == NONE:
        record.head = at
    else:
        s.requests[record.tail].next = at
    record.tail = at
    return at


@kernel
def answered(s, out, rows, i, role, slot):
    """The request that row `i` answers, still to be released; NONE when there is none."""
    record = s.dialogues[_dialogue(s, rows.channel[i], slot.life, role.dialogue, 1 - rows.sender[i])]
    at = record.head
    if at == NONE:
        return NONE
    request = s.requests[at]
    record.head = request.next
    request.next = NONE
    latency_ns = rows.ts_ns[i] - request.ts_ns
    write_reply(out, s.numbers[CONNECTION], request.frame_no, rows.frame_no[i], rows.name[i], latency_ns)
    if request.link != NONE:
        link = s.links[request.link]
        link.accepted = 1
        if link.tag == 0 and rows.consumer_tag[i] != 0:
            link.tag = rows.consumer_tag[i]
            put(s.found_by, link_key(rows.channel[i], link.tag), request.link)
    has_type(s, request.queue, request.queue_type)
    if request.declares != NONE:
        s.declared[request.declares] = rows.queue[i]
    if request.result != NO_RESULT:
        _end_transaction(s, out, rows.channel[i], slot.life, request)
    return at


@kernel
def _end_transaction(s, out, channel, life, request):
    """What waited for the end of the transaction happens, or did not happen."""
    connection, result, at = s.numbers[CONNECTION], request.result, request.tx_head
    while at != NONE:
        p = s.pendings[at]
        write_event(
            out, connection, p.ledger, p.frame_no, 0, p.first, p.last, p.outcome, 1, request.ts_ns, result
        )  # fmt: skip
        at = p.next
    used_again(s.pendings, request.tx_head, s.numbers, FREE_PENDING)
    request.tx_head = NONE
    if request.tx_first:
        ledger = ledger_of(channel, life, TRANSACTED)
        write_event(
            out, connection, ledger, request.frame_no, 0, request.tx_first, request.tx_last, UNKNOWN, 0, 0, result
        )  # fmt: skip
