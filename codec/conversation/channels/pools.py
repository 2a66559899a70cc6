"""Records of `codec.conversation.channels.state` in pools, of which those that are no longer needed are used again."""

from __future__ import annotations

from codec.compiler.kernel import kernel
from codec.conversation.channels.state import NONE


@kernel
def used_again(pool, head, numbers, free):
    """The chain of records from `head` on is free."""
    while head != NONE:
        following = pool[head].next
        pool[head].next = numbers[free]
        numbers[free] = head
        head = following


@kernel
def record_of(pool, numbers, used, free):
    """A record of `pool`: a free one, else a new one."""
    at = numbers[free]
    if at != NONE:
        numbers[free] = pool[at].next
    else:
        at = numbers[used]
        numbers[used] += 1
    return at
