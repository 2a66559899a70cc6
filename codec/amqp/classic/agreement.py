"""Which of the classic versions (0-8, 0-9, 0-9-1) a connection speaks, where its protocol header does not settle it.

The rule, in this order:

1. The client's protocol header proposes a version.
2. The server's `connection.start` decides: version-major and version-minor are those the server agrees to use
   (connection.start of the 0-8, 0-9 and 0-9-1 documents). 8 0 is 0-8, whatever the header was and if none was seen.
   0 9 is said by 0-9 and 0-9-1 alike: a header of one of the two stands; without one 0-8 is ruled out, and frames
   tell the rest. Numbers that no version says change nothing. What differs from the header is kept among the offers.
3. Until something is settled, whole frames are weighed by how they fit each version's definitions. Rows are not
   handed out while this goes on (`R.UNRESOLVED_ROWS`), so that all of them say the same version in the end. Where
   nothing tells the versions apart, it is 0-9-1.
"""

from __future__ import annotations

import numpy as np

from codec.amqp import rows as R
from codec.amqp.classic.methods import check_header, check_method, classify_method
from codec.amqp.versions import (
    CLASSIC,
    E_METHOD,
    HEADER,
    METHOD,
    NONE,
    OFFERS,
    OOB_HEADER,
    OOB_METHOD,
    PROTOCOL_HEADER,
    START_SAID,
    UNKNOWN,
    V0_8,
    V0_9_1,
)
from codec.compiler.kernel import kernel
from codec.compiler.limits import PROTOCOL_HEADERS

EVERY_CLASSIC = 0b1110  # bits by version code: 0-8, 0-9, 0-9-1
# Of versions that fit the frames equally well the first one: by how many speak them.
PREFERRED = np.array([V0_9_1, V0_8, V0_8 + 1], np.int64)
# Points against a version. A frame that another version defines and this one does not, or not so, can hardly be of it;
# some clients of 0-9-1 still send an access ticket, which it reserves (0-9-1 XML, domain of reserved-1).
MISFIT, TICKET, RULED_OUT = 3, 1, 1 << 30


@kernel
def payload_fits(buf, start, stop, kind, t, version):
    """Whether the payload `buf[start:stop]` of a frame of type `kind` is exactly what `version` defines."""
    if kind in (METHOD, OOB_METHOD):
        method = classify_method(buf, start, stop, t, version)
        return method >= 0 and check_method(buf, start, stop, t, version, method)
    if kind in (HEADER, OOB_HEADER):
        return check_header(buf, start, stop, t, version)
    return kind >= 0


@kernel
def fitting_versions(buf, p, stop, t, versions):
    """Those of `versions` (bits by version code) that define the frame at `p`, whose payload ends at `stop`."""
    fits = 0
    for version in range(V0_8, V0_9_1 + 1):
        if versions >> version & 1 and payload_fits(
            buf, p + 7, stop, int(t.frame_kind[version, int(buf[p])]), t, version
        ):
            fits |= 1 << version
    return fits


@kernel
def possible_versions(c):
    """The versions that frames of connection `c` may be of: the settled one, else every classic one."""
    return 1 << int(c.version) if c.version_known and c.family == CLASSIC else EVERY_CLASSIC


@kernel
def assume(c):
    """Frames of the classic family, of no settled version: begin to weigh them."""
    c.family = CLASSIC
    c.version = V0_9_1
    c.version_known = 0
    c.weighing = 1


@kernel
def weigh_frame(rows, c, buf, p, stop, t):
    """Let the whole frame at `p`, whose payload ends at `stop`, speak for and against the versions of `c`."""
    if c.weighed == c.frame_no + 1:
        return  # this frame is taken a second time, because its row did not fit
    c.weighed = c.frame_no + 1
    fits = fitting_versions(buf, p, stop, t, EVERY_CLASSIC)
    if fits == 0:
        return
    for version in range(V0_8, V0_9_1 + 1):
        if not fits >> version & 1:
            c.misfits[version] += MISFIT
    if fits >> V0_9_1 & 1 and t.frame_kind[V0_9_1, int(buf[p])] == METHOD:
        method = classify_method(buf, p + 7, stop, t, V0_9_1)
        if t.method_ticket[method] and (buf[p + 11] or buf[p + 12]):
            c.misfits[V0_9_1] += TICKET
    settle_on_likeliest(rows, c, t)


@kernel
def settle_on_likeliest(rows, c, t):
    """The version with the fewest points against it becomes that of `c` and of its rows at hand."""
    likeliest = V0_9_1
    for version in PREFERRED:
        if c.misfits[version] < c.misfits[likeliest]:
            likeliest = version
    if likeliest != c.version:
        rename_rows(rows, c, likeliest, t)


@kernel
def method_index(t, version, klass, method):
    """Index of a method by its numbers, -1 undefined."""
    if klass < 0 or method < 0 or klass >= t.lookup.shape[1] or method >= t.lookup.shape[2]:
        return -1
    return int(t.lookup[version, klass, method])


@kernel
def method_sender(c, buf, start, stop, method, t):
    """Who alone sends the method whose payload is `buf[start:stop]`: R.CLIENT, R.SERVER, or -1; its index is `method`.
    While frames are weighed, every version that has these numbers must say so (10 61 is connection.close-ok of 0-8,
    which both send, and later connection.unblocked of servers)."""
    sender = int(t.method_sender[method])
    if c.weighing:
        for version in range(V0_8, V0_9_1 + 1):
            other = classify_method(buf, start, stop, t, version)
            if other >= 0 and t.method_sender[other] != sender:
                return -1
    return sender


@kernel
def rename_rows(rows, c, version, t):
    """`c` turns out to be of `version`: so are its rows at hand, with the names that their frames have there."""
    c.version = version
    for i in range(int(c.row_from), int(rows.used[0])):
        row = rows.cells[i]
        kind = int(row[R.TYPE])
        if row[R.CONNECTION] != c.connection_id or kind == PROTOCOL_HEADER:
            continue
        row[R.VERSION] = version
        row[R.KNOWN] = c.version_known
        if row[R.NAME] < 0:
            continue
        if kind in (METHOD, OOB_METHOD):
            method = method_index(t, version, int(row[R.CLASS]), int(row[R.METHOD_ID]))
            if method >= 0:
                row[R.NAME] = t.method_name[method]
            else:
                row[R.NAME] = -1
                row[R.STATUS] = UNKNOWN
                row[R.ERROR] = E_METHOD
            if row[R.DEFINITION] >= 0:
                row[R.DEFINITION] = method
        elif t.class_name[version, int(row[R.CLASS])] >= 0:
            row[R.NAME] = t.class_name[version, int(row[R.CLASS])]


@kernel
def is_start(buf, start, stop, t):
    """Whether `buf[start:stop]` is the payload of a whole connection.start (the same in all classic versions)."""
    method = classify_method(buf, start, stop, t, V0_9_1)
    return method == t.start[V0_9_1] and check_method(buf, start, stop, t, V0_9_1, method)


@kernel
def agree(rows, c, direction, major, minor, t):
    """The server's connection.start, sent in `direction`, says version `major` `minor`: rule 2."""
    c.started = 1
    said, settled = 0, NONE
    for version in range(V0_8, V0_9_1 + 1):
        if t.start_says[version, 0] == major and t.start_says[version, 1] == minor:
            settled = version if said == 0 else NONE
            said |= 1 << version
    if c.version_known and said >> int(c.version) & 1:
        return
    if c.offers < OFFERS:
        c.offer[c.offers] = (direction << 32) | (START_SAID << 24) | (major << 8) | minor
        c.offers += 1
    else:
        c.limits |= PROTOCOL_HEADERS
    if said == 0:
        return
    c.version_known = 1 if settled != NONE else 0
    c.weighing = 1 if settled == NONE and c.frame_no < R.UNRESOLVED_ROWS else 0
    for version in range(V0_8, V0_9_1 + 1):
        if not said >> version & 1:
            c.misfits[version] = RULED_OUT
    if settled != NONE:
        rename_rows(rows, c, settled, t)
    else:
        settle_on_likeliest(rows, c, t)
