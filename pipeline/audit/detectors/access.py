"""Access tickets of 0-8 and 0-9 (class access), which later versions do without: rules FR-14 and MT-10."""

from __future__ import annotations

from pipeline.audit.detector import Sql, State
from pipeline.audit.detectors.transactions import in_this_life

STATES = {"ticket_frame": State("max(CASE WHEN name = 'access.request-ok' THEN frame_no END)")}

NO_TICKET: Sql = "said.ticket = 0 AND name NOT LIKE 'access.%'"
TICKET_GRANTED: Sql = in_this_life("ticket_frame")
# Brokers that do not look at tickets.
TICKETS_IGNORED: Sql = "lower(try_variant_get(c.server_properties, '$.product', 'string')) RLIKE 'rabbitmq|qpid'"
