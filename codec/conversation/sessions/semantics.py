"""What the performatives of 1.0 and the controls and commands of 0-10 do, as data.

Names are unique across the versions ('message.transfer', 'transfer'), so one table serves both.

Sources: 1.0 core specification, parts 2 (transport), 3 (messaging), 4 (transactions); 0-10 specification, classes
session, execution, message, tx, dtx.
"""

from __future__ import annotations

import numpy as np

from codec.amqp.versions import fact_table
from codec.conversation.sessions.state import (
    CLOSING,
    COMPLETED,
    CONFIRMING,
    EXPECTED,
    FLOW,
    KNOWN_COMPLETED,
    MECHANISMS,
    OPENING,
    RESPONSE,
    ROLE,
    ROLE_FIELDS,
    TIMEOUT,
    TUNING,
)
from codec.memory import as_records
from codec.sides import SIDES

VERSIONS = ("0-10", "1.0")
OPERATIONS = ("publish", "deliver")  # by sender: a transfer of the client is a publish
MODES = ("confirm", "tx", "dtx")  # of channels, from 1 on
TRANSACTIONS = ("committed", "rolled-back")  # from 1 on, as in codec.conversation.settlement
LINK_KINDS = ("sender", "receiver", "subscription")  # from 1 on; the client's side of it
# From 1 on, in the order in which `codec.conversation.sessions.state` names those that it knows.
OUTCOMES = (
    "unsettled", "unknown", "presettled", "aborted", "confirmed", "nacked", "rejected", "returned", "acked", "released",
    "modified",
)  # fmt: skip

# Who gives which outcome to a message that the other side sent, by command or by delivery state.
OUTCOME_OF = {
    "accepted": {"server": "confirmed", "client": "acked"},
    "declared": {"server": "confirmed", "client": "acked"},  # the outcome of a declare is its transaction id (4.5.5)
    "rejected": {"server": "rejected", "client": "rejected"},
    "released": {"server": "released", "client": "released"},
    "modified": {"server": "modified", "client": "modified"},
    "message.accept": {"server": "confirmed", "client": "acked"},
    "message.reject": {"server": "rejected", "client": "rejected"},
    "message.release": {"server": "released", "client": "released"},
    # A publish of 0-10 needs no accept: it is done with its command.
    "session.completed": {"server": "confirmed"},
    "execution.result": {"server": "confirmed"},
    "execution.exception": {"server": "nacked"},
}
# What counts in table channels: (who sent the message, its outcomes).
COUNTED = {
    "returned": ("client", ("returned",)),
    "confirmed": ("client", ("confirmed",)),
    "nacked": ("client", ("nacked", "rejected", "released", "modified")),
    "acked": ("server", ("acked",)),
    "rejected": ("server", ("rejected",)),
    "requeued": ("server", ("released", "modified")),
}

# ---- 1.0 ------------------------------------------------------------------------------------------------------------
SND_SETTLE_MODES = ("unsettled", "settled", "mixed")
RCV_SETTLE_MODES = ("first", "second")
DEFAULT_SND_SETTLE_MODE, DEFAULT_RCV_SETTLE_MODE = 2, 0  # 2.7.3
DISTRIBUTION_MODES = ("move", "copy")
COPY = "copy"  # distribution-mode: messages stay at the node (3.5.7)
# Capabilities of a source or target that is a topic, where its address does not say so (AMQP JMS Mapping).
TOPICS = ("topic", "temporary-topic")
# `copies` of links: an index in DISTRIBUTION_MODES, or -1, and this if the node of the broker is a topic.
OF_TOPIC = len(DISTRIBUTION_MODES) + 1
COORDINATOR, TRANSACTIONAL, DECLARED, DISCHARGE = "coordinator", "transactional-state", "declared", "discharge"
COORDINATES = ("declare", "discharge")  # what is asked of a transaction coordinator (4.5.3, 4.5.4)
HAVE_TEXTS = ("rejected", "modified")  # outcomes with an error, or annotations
# Errors with which Azure Service Bus refuses a settlement: the lock of the message, or of its session, has expired, and
# the message is in its queue again.
TOO_LATE = ("com.microsoft:message-lock-lost", "com.microsoft:session-lock-lost")

# ---- 0-10 -----------------------------------------------------------------------------------------------------------
IN_SEGMENTS = ("0-10",)  # versions in which a control or command may take several frames
NO_ACCEPT = 1  # accept-mode none
ACQUIRE_MODES = ("pre-acquired", "not-acquired")
NOT_ACQUIRED = 1  # acquire-mode: the message stays in its queue
FLOW_MODES = ("credit", "window")
DEFAULT_FLOW_MODE = FLOW_MODES.index("window")  # message.subscribe, rule default-flow-mode
UNROUTABLE = (1, 2)  # reject codes unroutable, immediate: what a return says in the classic family
SUCCESS = 0
# dtx.xa-status of an execution.result -> outcome of its command: rolled back; it may have been, partly; committed
# ("acked"), whatever was asked; else done.
OUTCOME_OF_STATUS = {1: "nacked", 2: "nacked", 3: "unknown", 4: "acked", 5: "nacked", 6: "unknown"}
COUNTS_OCTETS, OCTETS_OF = ("0-10",), ("header", "body")  # where credit has octets: payloads of these frames
COMMITS, ROLLS_BACK = 1, 2
# What a change does to the credit before it: nothing left; nothing left once it is completed; that completion.
ZEROES, FLUSHES, FLUSHED = 1, 2, 3

# Name -> fields of ROLE. `own_numbers`: each side numbers its own channels; else they share them.
_OF_1_0 = {"own_numbers": 1, "listed": 1}
_OF_0_10 = {"listed": 1}
_ON_HANDLE = {**_OF_1_0, "on_handle": 1}
_OF_SUBSCRIPTION = {**_OF_0_10, "on_destination": 1}
# What `requests` waits for the next frame of the other side that `replies` in the same exchange. In 1.0 the sides open
# and close connections alike: the first one asks (2.4.1, 2.4.3; SASL: 5.3.2).
OUTCOME = TUNING  # of SASL in 1.0, which has no tuning
_OF_CONNECTION = {
    "sasl-mechanisms": {"requests": MECHANISMS},
    "sasl-init": {"replies": MECHANISMS, "requests": OUTCOME},
    "sasl-challenge": {"replies": OUTCOME, "requests": RESPONSE},
    "sasl-response": {"replies": RESPONSE, "requests": OUTCOME},
    "sasl-outcome": {"replies": OUTCOME},
    "open": {"requests": OPENING, "replies": OPENING},
    "close": {"requests": CLOSING, "replies": CLOSING, "closes_connection": 1},
    "connection.start": {"requests": MECHANISMS},
    "connection.start-ok": {"replies": MECHANISMS},
    "connection.secure": {"requests": RESPONSE},
    "connection.secure-ok": {"replies": RESPONSE},
    "connection.tune": {"requests": TUNING},
    "connection.tune-ok": {"replies": TUNING},
    "connection.open": {"requests": OPENING},
    "connection.open-ok": {"replies": OPENING},
    "connection.redirect": {"replies": OPENING},
    "connection.close": {"requests": CLOSING, "closes_connection": 1},
    "connection.close-ok": {"replies": CLOSING},
}
ROLES: dict[str, dict[str, int]] = {
    "begin": {**_OF_1_0, "opens_session": 1, "announces_windows": 1},
    "end": {**_OF_1_0, "closes_session": 1, "states_reason": 1},
    "attach": {**_ON_HANDLE, "attaches": 1},
    "flow": {**_ON_HANDLE, "announces_windows": 1, "states_credit": 1, "replies": FLOW},
    "transfer": {**_ON_HANDLE, "transfers": 1},
    "detach": {**_ON_HANDLE, "detaches": 1},
    "disposition": {"own_numbers": 1, "settles": 1, "states_outcome": 1},
    **{name: {"of_connection": 1, **role} for name, role in _OF_CONNECTION.items()},
    "session.attach": {**_OF_0_10, "opens_session": 1},
    "session.attached": {**_OF_0_10, "answers_attach": 1},
    "session.request-timeout": {"requests": TIMEOUT},
    "session.timeout": {**_OF_0_10, "grants_timeout": 1, "replies": TIMEOUT},
    "session.flush": {},  # asks by its arguments
    "session.expected": {"replies": EXPECTED},
    "session.confirmed": {"replies": CONFIRMING},
    "session.known-completed": {"replies": KNOWN_COMPLETED},
    "session.detach": {**_OF_0_10, "closes_session": 1},
    "session.detached": {**_OF_0_10, "closes_session": 1, "answers_detach": 1},
    "message.subscribe": {**_OF_SUBSCRIPTION, "subscribes": 1},
    "message.cancel": {**_OF_SUBSCRIPTION, "cancels": 1},
    "message.flow": {**_OF_SUBSCRIPTION, "grants_credit": 1},
    "message.set-flow-mode": {**_OF_SUBSCRIPTION, "sets_flow_mode": 1, "zeroes_credit": ZEROES},
    "message.stop": {**_OF_SUBSCRIPTION, "zeroes_credit": ZEROES},
    "message.flush": {**_OF_SUBSCRIPTION, "zeroes_credit": FLUSHES},
    "message.transfer": {**_OF_SUBSCRIPTION, "transfers": 1, "transactional": 1},
    "message.accept": {"settles": 1, "names_transfers": 1, "transactional": 1},
    "message.reject": {"settles": 1, "names_transfers": 1, "may_return": 1},
    "message.release": {"settles": 1, "names_transfers": 1},
    "session.completed": {"settles": 1, "completes": 1, "replies": COMPLETED},
    "execution.result": {"settles": 1, "reports_status": 1},
    "execution.exception": {**_OF_0_10, "settles": 1, "states_reason": 1, "refuses": 1},
    "tx.select": {**_OF_0_10, "mode": 2},
    "dtx.select": {**_OF_0_10, "mode": 3},
    "tx.commit": {**_OF_0_10, "ends_transaction": COMMITS, "of_session": 1, "proves_mode": 2},
    "tx.rollback": {**_OF_0_10, "ends_transaction": ROLLS_BACK, "of_session": 1, "proves_mode": 2},
    "dtx.commit": {**_OF_0_10, "ends_transaction": COMMITS, "names_branch": 1},
    "dtx.rollback": {**_OF_0_10, "ends_transaction": ROLLS_BACK, "names_branch": 1},
    "dtx.start": {**_OF_0_10, "starts_branch": 1, "names_branch": 1, "proves_mode": 3},
    "dtx.end": {**_OF_0_10, "ends_branch": 1, "proves_mode": 3},
}
# What a command does to the session is answered by its result, its exception, or its completion. Transfers and what
# settles them are no requests: table messages has their outcomes.
for _class in fact_table("0-10")["classes"]:
    for _command in _class.get("commands", ()):
        _role = ROLES.setdefault(f"{_class['name']}.{_command['name']}", {})
        if not _role.keys() & {"transfers", "settles"}:
            _role["awaits"] = 1
NAMES = tuple(ROLES)
# Frames that settle: a partial one hides a settlement.
SETTLES = tuple(name for name, role in ROLES.items() if role.get("settles"))
# Frames that are requests if one of these arguments is true: name -> arguments, the first one that is true counts, and
# the exchange of the reply (0-10: class session; 1.0: 2.7.4, echo).
ASKS = {
    "session.flush": {"completed": COMPLETED, "confirmed": CONFIRMING, "expected": EXPECTED},
    "session.completed": {"timely_reply": KNOWN_COMPLETED},
    "flow": {"echo": FLOW},
}
# Frames that the other side answers.
_ASK = {"requests", "awaits", "attaches", "detaches", "opens_session", "closes_session"}
REQUEST_NAMES = tuple(name for name, role in ROLES.items() if role.keys() & _ASK and not role.get("answers_detach"))


def names_with(role: str) -> tuple[str, ...]:
    """The names that do this."""
    return tuple(name for name, fields in ROLES.items() if fields.get(role))


def compiled_roles() -> np.ndarray:
    """ROLES as the kernels read them: ROLE by the number of the name, from 1 on."""
    rows = np.zeros(len(NAMES) + 1, ROLE)
    for number, role in enumerate(ROLES.values(), start=1):
        assert set(role) <= set(ROLE_FIELDS)
        for field, value in role.items():
            rows[field][number] = value
    return as_records(rows)


def outcome_numbers(names: tuple[str, ...]) -> np.ndarray:
    """OUTCOME_OF as numbers of OUTCOMES: int64 (names + 1, 2), by name, from 1 on, and sender; 0 for none."""
    numbers = np.zeros((len(names) + 1, len(SIDES)), np.int64)
    for at, name in enumerate(names, start=1):
        for side, outcome in OUTCOME_OF.get(name, {}).items():
            numbers[at, SIDES.index(side)] = OUTCOMES.index(outcome) + 1
    return numbers
