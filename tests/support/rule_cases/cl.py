"""CL: how connections are closed."""

from __future__ import annotations

import encode_1_0 as P
import proton
from link_connections import say
from rule_connections import closed_0_10, closed_1_0, opened_0_10, opened_1_0
from rule_support import Case, Connection, spoken

V = spoken()
CHANNEL_ERROR = ("CH-09", "NM-11")
CLOSE = {"reply_code": 200, "reply_text": "bye"}


def closing(by: str = "client", code: int = 200) -> Connection:
    return Connection().handshake().send(by, "connection.close", 0, reply_code=code, reply_text="t")


def crossing() -> Connection:
    """The server closes a channel while the client closes the connection, which is answered."""
    connection = Connection().handshake().open(1).server("channel.close", reply_code=404, reply_text="NOT_FOUND")
    return connection.client("connection.close", 0, **CLOSE).server("connection.close-ok", 0)


def failed_1_0() -> proton.Described:
    """An error: condition amqp:internal-error."""
    return proton.Described(proton.ulong(0x1D), [proton.symbol("amqp:internal-error"), "oops"])


def closed_by_server(*error: proton.Described) -> Connection:
    connection = say(opened_1_0(Connection("1.0")), "server", P.CLOSE, *error, channel=0)
    return say(connection, "client", P.CLOSE, channel=0).fin("server")


def ended() -> Connection:
    return Connection().handshake().close()


CASES = [
    Case("CL-01", V, closing().fin("server"), ended(), evidence={"tcp_end": "fin"}, offender="server"),
    Case("CL-01", V, closing("server").wait(31).packet("server"), closing("server").wait(29).packet("server"),
         offender="client"),
    Case("CL-02", V, closing().heartbeat().server("connection.close-ok", 0).fin(), ended(),
         evidence={"observed": "heartbeat"}, offender="client"),
    Case("CL-03", V, closing().server("connection.close-ok", 0).wait(1).heartbeat("server").fin(), ended(),
         evidence={"observed": "heartbeat"}, offender="server"),
    # What the closer sent before the answer had arrived crosses it on the wire.
    Case("CL-03", V, crossing().wait(1).client("channel.close-ok").fin("server"),
         crossing().client("channel.close-ok").fin("server"), evidence={"observed": "channel.close-ok"},
         offender="client", besides=CHANNEL_ERROR),
    Case("CL-04", V, Connection().handshake().fin("client"), ended(), evidence={"observed": "fin"}, offender="client"),
    Case("CL-04", "0-10", opened_0_10(Connection("0-10")).rst("server"), closed_0_10(opened_0_10(Connection("0-10")))),
    Case("CL-04", "1.0", opened_1_0(Connection("1.0")).fin("server"), closed_1_0(opened_1_0(Connection("1.0"))),
         offender="server"),
    Case("CL-05", V, Connection().handshake().client("connection.close-ok", 0), ended(), also=("MT-02",),
         offender="client"),
    Case("CL-05", "0-9", Connection("0-9").handshake().open(1).server("channel.close-ok").close(),
         Connection("0-9").handshake().open(1).close(), also=("MT-02", "CH-01"),
         evidence={"observed": "channel.close-ok"},
         offender="server"),
    Case("CL-06", V, closing("server").wait(1).heartbeat().client("connection.close-ok", 0).fin(),
         closing("server").heartbeat().client("connection.close-ok", 0).fin(), evidence={"observed": "heartbeat"},
         offender="client"),
    Case("CL-07", V, Connection().handshake().close("server", 406, "PRECONDITION_FAILED"), ended(),
         also=("CL-08",), evidence={"observed": 406}),
    Case("CL-08", V, Connection().handshake().close("server", 541, "INTERNAL_ERROR"), ended(),
         evidence={"reply_code": 541}),
    Case("CL-08", "0-10", closed_0_10(opened_0_10(Connection("0-10")), 501, "no"),
         closed_0_10(opened_0_10(Connection("0-10")))),
    Case("CL-08", "1.0", closed_1_0(opened_1_0(Connection("1.0")), failed_1_0()),
         closed_1_0(opened_1_0(Connection("1.0")))),
    # The server's close has the error, the client's is the answer: two headers each, three frames of SASL, two opens.
    Case("CL-08", "1.0", closed_by_server(failed_1_0()), closed_by_server(), evidence={"by": "server"}, frame_no=10),
]  # fmt: skip
