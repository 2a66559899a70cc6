"""A damaged login shows no piece of its secret: not in rows, not in facts, not in the output of redaction."""

from __future__ import annotations

import random

import classic_frames
import pytest
from classic_support import long_prefixed, shortstr
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from logins import PASSWORD, Login, Searcher, copies_nothing, damaged, logins, pieces, resized, splices
from wire import CLIENT, Wire

LOGINS = {f"{login.version} {login.mechanism} {i}": login for i, login in enumerate(logins())}
SAMPLE = 30  # of some 5,000 ways to damage each frame; `make fuzz` tries others every time


@pytest.fixture(scope="module")
def searcher() -> Searcher:
    return Searcher()


@pytest.mark.parametrize("name", LOGINS)
def test_a_sound_login_shows_nothing(name: str, searcher: Searcher) -> None:
    login = LOGINS[name]
    assert login.secret_frames
    assert len(pieces(login)) >= 8
    for index in login.secret_frames:
        assert searcher.leaks(login, index, login.frames[index][1]) == []


def test_the_search_finds_a_leaked_secret(searcher: Searcher) -> None:
    """A secret in other places: a product, a body."""
    login = next(each for each in LOGINS.values() if each.version == "0-9-1")
    about = {"client_properties": {"product": PASSWORD[:6]}, "mechanism": "PLAIN", "response": b"", "locale": "x"}
    leaks = searcher.leaks(login, 2, classic_frames.method("0-9-1", "connection.start-ok", 0, **about))
    assert {index.split(":")[0] for index in leaks} == {"arguments", "redacted"}
    login = Login("0-9-1", "", (*login.frames, (CLIENT, b"")), (), login.secret)
    assert "payload" in searcher.leaks(login, len(login.frames) - 1, classic_frames.body(PASSWORD))[0]


def test_the_search_in_all_tables_finds_a_leaked_secret(searcher: Searcher) -> None:
    """A secret as a product, among logins that are sound."""
    login = next(each for each in LOGINS.values() if each.version == "0-9-1" and each.mechanism == "PLAIN")
    (index,) = login.secret_frames
    about = {"client_properties": {"product": PASSWORD[:6]}, "mechanism": "PLAIN", "response": b"", "locale": "x"}
    data = classic_frames.method("0-9-1", "connection.start-ok", 0, **about)
    sound = (login.frames[index][1], None)
    assert searcher.leaking(login, index, [sound, sound]) == []
    found = {where.split(":")[0] for where in searcher.leaking(login, index, [sound, (data, None), sound])}
    assert found >= {"frames.arguments", "methods.arguments", "connections.client_product", "redacted"}
    number = Login("0-9-1", "", login.frames, (), PASSWORD[:4])
    header = classic_frames.header("0-9-1", "basic", int.from_bytes(PASSWORD[:4], "big"))
    assert searcher.leaking(number, len(login.frames) - 1, [(header, None)]) != []


@pytest.mark.parametrize("name", LOGINS)
def test_a_damaged_login_shows_nothing(name: str, searcher: Searcher) -> None:
    login, rng = LOGINS[name], random.Random(name)
    for index in login.secret_frames:
        other = rng.choice(rng.choice(list(LOGINS.values())).frames)[1]
        changed = rng.sample(list(damaged(login, index, rng, other, spliced=60)), SAMPLE)
        assert searcher.leaking(login, index, [(data, None) for data in changed]) == []


@pytest.mark.parametrize("name", LOGINS)
def test_a_login_that_the_snaplen_cut_shows_nothing(name: str, searcher: Searcher) -> None:
    """Cut at every byte, and damaged before that."""
    login, rng = LOGINS[name], random.Random(name)
    for index in login.secret_frames:
        sound, other = login.frames[index][1], rng.choice(rng.choice(list(LOGINS.values())).frames)[1]
        cut = [(sound, captured) for captured in range(7, len(sound), 1 + len(sound) // 50)]
        for data in rng.sample(list(damaged(login, index, rng, other, spliced=60)), SAMPLE):
            cut.append((data, rng.randint(7, max(7, len(data) - 1))))
        assert searcher.leaking(login, index, cut) == []


def test_undefined_method_numbers_in_a_cut_frame_are_not_shown(searcher: Searcher) -> None:
    """The bytes of a proof where class and method stand, in a frame whose size reaches beyond what was captured."""
    login, index, _ = login_of("0-8", "SCRAM-SHA-256")
    data = bytes.fromhex("01 0000 00050553") + b"X8v3Bz2T0CJGbJQyF0XHI4Ts=" + b"\xce"
    assert searcher.leaks(login, index, data, 24) == []


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(LOGINS)), st.integers(0, 2**32), st.integers(1, 3))
def test_a_login_damaged_at_random_shows_nothing(name: str, seed: int, times: int) -> None:
    login, rng = LOGINS[name], random.Random(seed)
    index = rng.choice(login.secret_frames)
    sound, other = login.frames[index][1], rng.choice(rng.choice(list(LOGINS.values())).frames)[1]
    data = sound
    for _ in range(times):
        data = splices(rng, data, other)
    assume(copies_nothing(login, sound, other, data))
    for given_bytes in (data, resized(login.version, data)):
        assert Searcher().leaks(login, index, given_bytes) == [], given_bytes


def login_of(version: str, mechanism: str) -> tuple[Login, int, bytes]:
    """A login, and place and bytes of its frame that bears the secret."""
    login = next(each for each in LOGINS.values() if (each.version, each.mechanism) == (version, mechanism))
    (index,) = login.secret_frames
    return login, index, login.frames[index][1]


def start_ok_row(mechanism: bytes, response: bytes, wrong_size: int = 0) -> dict[str, object]:
    """Arguments of a start-ok of 0-9-1; `wrong_size`: the length byte of the mechanism."""
    name = bytes([wrong_size]) + mechanism if wrong_size else shortstr(mechanism)
    payload = b"\0\x0a\0\x0b" + bytes(4) + name + long_prefixed(response) + shortstr(b"en_US")
    wire = Wire()
    wire.add(CLIENT, b"AMQP\0\0\x09\x01" + classic_frames.frame(1, 0, payload))
    found: dict[str, object] = wire.rows()[0][1]["arguments"]
    return found


@pytest.mark.parametrize("size", [7, 10, 13, 20, 21, 37])
def test_a_mechanism_that_includes_the_response_is_not_shown(size: int) -> None:
    assert start_ok_row(b"PLAIN", b"\0alice\0" + PASSWORD, size) == {}


def test_a_user_that_includes_the_password_is_not_shown() -> None:
    """The length of LOGIN reaches into the password, and to the end of the response."""
    entries = b"\x05LOGINS" + b"alice" + b"\x08PASSWORDS" + long_prefixed(PASSWORD)
    for size in (15, 20, 33, len(entries) - 7):
        data = entries[:7] + size.to_bytes(4, "big") + entries[7:]
        arguments = start_ok_row(b"AMQPLAIN", data)
        assert arguments == {"client_properties": {}, "mechanism": "AMQPLAIN", "locale": "en_US"}


def test_a_property_that_ends_with_the_secret_is_not_shown(searcher: Searcher) -> None:
    """What stands between was lost, and the table fits as before; no mechanism follows."""
    login, index, data = login_of("0-9-1", "PLAIN")
    property_at, at = data.index(b"Python") + 2, data.index(PASSWORD) + 7
    assert searcher.leaks(login, index, resized("0-9-1", data[:property_at] + data[at:])) == []


def test_a_login_in_an_extended_header_is_blanked(searcher: Searcher) -> None:
    """DOFF, in units of four bytes, covers the frame but for its size."""
    login = next(each for each in LOGINS.values() if each.version == "1.0" and len(each.frames[2][1]) % 4 == 0)
    data = login.frames[2][1]
    assert searcher.leaks(login, 2, data[:4] + bytes([len(data) // 4]) + data[5:]) == []


def test_characters_are_not_read_as_method_numbers(searcher: Searcher) -> None:
    """A method frame that lacks all before the middle of a token, behind the login."""
    login, index, data = login_of("0-9-1", "update-secret")
    assert searcher.leaks(login, index, resized("0-9-1", data[:7] + data[50:])) == []


@pytest.mark.parametrize("version", ["0-8", "0-9", "0-9-1", "0-10"])
def test_a_zero_inserted_before_the_length_of_a_secret_does_not_show_it_as_the_locale(
    version: str, searcher: Searcher
) -> None:
    """The response is empty then, and its own bytes are a short string. Cut frames have no end that tells."""
    for login in (each for each in LOGINS.values() if each.version == version):
        for index in login.secret_frames:
            data = login.frames[index][1]
            lengths = [at for at in range(len(data) - 4) if data[at : at + 3] == bytes(3) and 4 < data[at + 3] < 32]
            changed = [data[:at] + b"\0" + data[at:] for at in lengths]
            damages = [(each, cut) for each in changed for cut in (None, *range(len(each) - 8, len(each)))]
            assert not damages or searcher.leaking(login, index, damages) == []


@pytest.mark.parametrize("version", ["0-8", "0-9", "0-9-1", "0-10"])
def test_a_response_spliced_into_the_mechanism_is_no_name(version: str, searcher: Searcher) -> None:
    """Base64 of a password has pieces that have the form of a name; the frame is cut before it could be seen to be too
    short."""
    secret = b"PT9BQ0VHSUtNT1FTVVdZXzE1"
    for of_version in (each for each in LOGINS.values() if each.version == version and each.mechanism == "PLAIN"):
        login = Login(version, "PLAIN", of_version.frames, of_version.secret_frames, secret)
        (index,) = login.secret_frames
        data = login.frames[index][1]
        at = data.index(b"\x05PLAIN") + 1
        for retained in range(5):
            spliced = data[: at + retained] + secret + data[at + 9 :]
            cuts = range(at + retained + 4, at + retained + len(secret))
            assert searcher.leaking(login, index, [(spliced, cut) for cut in cuts]) == []


def test_two_zeros_in_a_response_to_a_challenge_make_it_no_plain_login(searcher: Searcher) -> None:
    """What is between them would be a user. PLAIN after an empty challenge begins with a zero, or with the user."""
    for login in (each for each in LOGINS.values() if each.mechanism == "SCRAM-SHA-256"):
        for index in login.secret_frames:
            data = login.frames[index][1]
            first = data.find(b"c=biws,")
            for at in range(first + 1, len(data) - 8) if first >= 0 else ():
                zeros = bytearray(data)
                zeros[at] = zeros[at + 5] = 0
                assert searcher.leaks(login, index, bytes(zeros)) == [], at


def test_bytes_inserted_into_a_secret_do_not_show_its_end_as_the_locale(searcher: Searcher) -> None:
    """Five bytes too many in the response, the last of them the length of the rest of the frame."""
    login, index, data = login_of("0-9-1", "AMQPLAIN")
    at = data.index(PASSWORD) + len(PASSWORD) - 4
    longer = resized("0-9-1", data[:at] + b"\0\0l\0\x0a" + data[at:])
    assert searcher.leaks(login, index, longer) == []


@pytest.mark.parametrize("frame_type", range(2, 9))
@pytest.mark.parametrize("version", ["0-8", "0-9", "0-9-1"])
def test_a_login_in_another_frame_type_is_not_shown_as_payload(
    version: str, frame_type: int, searcher: Searcher
) -> None:
    login, index, data = login_of(version, "PLAIN")
    data = bytes([frame_type]) + data[1:]
    assert searcher.leaks(login, index, data) == []
    client_login = Login(version, "PLAIN", ((CLIENT, login.frames[0][1]), (CLIENT, data)), (1,), login.secret)
    assert searcher.leaks(client_login, 1, data) == []  # the server's start was not captured


@pytest.mark.parametrize("other", [20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120])
@pytest.mark.parametrize("method", [20, 21, 31])
def test_a_response_read_as_a_method_of_another_class_is_not_shown(other: int, method: int, searcher: Searcher) -> None:
    """secure-ok of 0-8; bytes 7 to 10 of the frame are class and method."""
    login, index, data = login_of("0-8", "RABBIT-CR-DEMO")
    assert data[7:11] == b"\0\x0a\0\x15"
    assert searcher.leaks(login, index, data[:7] + bytes([0, other, 0, method]) + data[11:]) == []


@pytest.mark.parametrize(
    ("version", "mechanism", "numbers", "other"),
    [
        *(("1.0", "CRAM-MD5", b"\0\x53\x43", code) for code in (0x40, 0x41, 0x42, 0x44)),
        *(("0-9-1", "RABBIT-CR-DEMO", b"\x0a\0\x15", method) for method in (10, 11, 20, 30, 40, 50, 70)),
    ],
)
def test_a_response_read_as_another_frame_or_method_is_not_shown(
    version: str, mechanism: str, numbers: bytes, other: int, searcher: Searcher
) -> None:
    """sasl-response and secure-ok; bytes 8 to 10 of the frame say what it is."""
    login, index, data = login_of(version, mechanism)
    assert data[8:11] == numbers
    assert searcher.leaks(login, index, data[:10] + bytes([other]) + data[11:]) == []
