"""What the performatives of 1.0 and the controls and commands of 0-10 do, as data; beside `roles`.

Sources: 1.0 core specification, parts 2 (transport), 3 (messaging), 4 (transactions); 0-10 specification, classes
session, execution, message, tx, dtx.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from pipeline.tables.roles import MODES, TRANSACTION_ENDS, looked_up

# Life of a session.
OPENS_SESSION = ("begin", "session.attach")
ACCEPTS_SESSION = ("begin", "session.attached")
CLOSES_SESSION = ("end", "session.detach", "session.detached")
ANNOUNCES_WINDOWS = ("begin", "flow")
SAYS_WHY = ("end", "execution.exception")

# Who says what of a delivery, (name or delivery state, who said it) -> outcome of a message that the other side sent.
OUTCOMES = {
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
LINK_PERFORMATIVES = ("attach", "flow", "transfer", "detach")  # those with a handle
PERFORMATIVES = ("begin", *LINK_PERFORMATIVES, "disposition", "end")
SND_SETTLE_MODES = {"0": "unsettled", "1": "settled", "2": "mixed"}
RCV_SETTLE_MODES = {"0": "first", "1": "second"}
DEFAULT_SND_SETTLE_MODE, DEFAULT_RCV_SETTLE_MODE = "mixed", "first"  # 2.7.3
COPY = "copy"  # distribution-mode: messages stay at the node (3.5.7)
COORDINATOR, TRANSACTIONAL, DISCHARGE = "coordinator", "transactional-state", "discharge"
SERIAL = 2**32  # delivery numbers, command ids and credit count modulo this (RFC 1982)

# ---- 0-10 -----------------------------------------------------------------------------------------------------------
SUBSCRIBES, CANCELS = ("message.subscribe",), ("message.cancel",)
GRANTS_CREDIT, SETS_FLOW_MODE = ("message.flow",), ("message.set-flow-mode",)
ZEROES_CREDIT = (*SETS_FLOW_MODE, "message.stop")
SUBSCRIPTION_COMMANDS = (*SUBSCRIBES, *CANCELS, *GRANTS_CREDIT, *ZEROES_CREDIT)
TRANSFERS_0_10 = ("message.transfer",)
SETTLES_TRANSFERS = ("message.accept", "message.reject", "message.release")  # by ids of the other side's commands
COMPLETES_COMMANDS = ("session.completed",)
COMPLETES = (*COMPLETES_COMMANDS, "execution.result", "execution.exception")
TRANSACTIONAL_COMMANDS = ("message.transfer", "message.accept")
DTX_ENDS = {"dtx.commit": "committed", "dtx.rollback": "rolled-back"}
DTX_STARTS, DTX_STOPS = ("dtx.start",), ("dtx.end",)
UNROUTABLE = (1, 2)  # reject codes unroutable, immediate: what a return says in the classic family
CREDIT_MODE, WINDOW_MODE = 0, 1
FLOW_MODES = {str(CREDIT_MODE): "credit", str(WINDOW_MODE): "window"}
DEFAULT_FLOW_MODE = FLOW_MODES[str(WINDOW_MODE)]  # message.subscribe, rule default-flow-mode
NO_ACCEPT = 1  # accept-mode none
NOT_ACQUIRED = 1  # acquire-mode: the message stays in its queue
CREDIT_IN_MESSAGES, NO_LIMIT = 0, SERIAL - 1
CREDIT_UNITS = {CREDIT_IN_MESSAGES: "messages", 1: "octets"}
COMMANDS = (
    "session.attach",
    "session.attached",
    "session.detach",
    "session.detached",
    *SUBSCRIPTION_COMMANDS,
    *TRANSFERS_0_10,
    *SETTLES_TRANSFERS,
    *COMPLETES,
    *TRANSACTION_ENDS,
    *DTX_ENDS,
    *DTX_STARTS,
    *DTX_STOPS,
    *MODES,
)


def outcome_of(what: Column, said_by: Column) -> Column:
    """Outcome that `what` (a key of OUTCOMES) gives to messages of the other side; null when it gives none."""
    words = {f"{key} {side}": word for key, by_side in OUTCOMES.items() for side, word in by_side.items()}
    return looked_up(words, F.concat_ws(" ", what, said_by))
