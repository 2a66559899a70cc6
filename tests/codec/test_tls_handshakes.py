"""Handshakes that Python's OpenSSL cannot make, by tlslite-ng; for TLS 1.3 the key log has only traffic secrets."""

from __future__ import annotations

import hmac
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESCCM, AESGCM, ChaCha20Poly1305
from test_tls import AMQP, AMQP_10, PARTS, all_frames, assert_complete, conversation, sent, without_beginning
from tls_libssl import REQUEST, UPDATE
from tls_libssl import exchange as libssl_talk
from tls_lite import KEY_UPDATE, exchange, settings
from tls_peers import wire_of
from wire import CLIENT, SERVER

from codec.layers.stack import Layers
from codec.layers.tls_handshake import (
    CLIENT_TRAFFIC,
    SERVER_TRAFFIC,
    KeyLog,
    Secrets,
)
from codec.layers.tls_recovery import match_secrets

TLS12, TLS13 = (3, 3), (3, 4)


def decoded(payloads: Any, client: Any, server: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    flights, key_log = exchange(payloads, client, server)
    return wire_of(flights).rows(Layers(KeyLog(key_log)))


SUITES_13 = [
    ("aes128gcm", "TLS_AES_128_GCM_SHA256"),
    ("aes256gcm", "TLS_AES_256_GCM_SHA384"),
    ("chacha20-poly1305", "TLS_CHACHA20_POLY1305_SHA256"),
    ("aes128ccm", "TLS_AES_128_CCM_SHA256"),
    ("aes128ccm_8", "TLS_AES_128_CCM_8_SHA256"),
]


@pytest.mark.parametrize(("name", "suite"), SUITES_13)
def test_suites_of_tls_1_3(name: str, suite: str) -> None:
    selected = settings(TLS13, cipherNames=[name])
    rows, facts = decoded(conversation()[0], selected, selected)
    assert_complete(rows, facts)
    assert facts["tls"]["cipher_suite"] == suite


@pytest.mark.parametrize(("name", "suite"), SUITES_13)
@pytest.mark.parametrize("first", [0, 31])
def test_a_connection_that_began_before_the_capture_is_found_by_trial(name: str, suite: str, first: int) -> None:
    """Each write is a flight: without the handshake and the `first` of them the frames are those of the rest in clear,
    as `test_tls` has it for OpenSSL."""
    payloads = list(conversation()[0])
    selected = settings(TLS13, cipherNames=[name])
    flights, key_log = exchange(payloads, selected, selected)
    handshake = len(flights) - len(payloads)
    rows, facts = without_beginning(flights, handshake + first).rows(Layers(KeyLog(key_log)))
    clear, _ = without_beginning(payloads, first).rows()
    names = ("sender", "name", "size", "arguments", "digest", "packet", "frame_type")
    assert [[row[name] for name in names] for row in rows] == [[row[name] for name in names] for row in clear]
    assert len(rows) > 20
    assert (facts["tls"]["decrypted"], facts["tls"]["cipher_suite"]) == (True, suite)


def made_records(suite: str, number: int, contents: list[bytes]) -> tuple[bytes, bytes]:
    """A traffic secret, and records of `contents` from `number` on, made step by step as RFC 8446 has them (sections
    5.2, 5.3 and 7.3)."""
    secret = bytes(range(32))

    def expand(label: bytes, size: int) -> bytes:
        info = bytes((0, size, 6 + len(label))) + b"tls13 " + label + b"\0\1"  # HkdfLabel, and the counter of HKDF
        return hmac.digest(secret, info, "sha256")[:size]

    key, iv = expand(b"key", 32 if "CHACHA" in suite else 16), expand(b"iv", 12)
    ciphers: dict[str, Any] = {
        "TLS_AES_128_GCM_SHA256": AESGCM,
        "TLS_CHACHA20_POLY1305_SHA256": ChaCha20Poly1305,
        "TLS_AES_128_CCM_SHA256": AESCCM,
        "TLS_AES_128_CCM_8_SHA256": lambda key: AESCCM(key, 8),
    }
    records = b""
    for at, content in enumerate(contents, number):
        nonce = bytes(a ^ b for a, b in zip(iv, bytes(4) + at.to_bytes(8, "big"), strict=True))
        head = b"\x17\x03\x03" + (len(content) + 1 + (8 if "CCM_8" in suite else 16)).to_bytes(2, "big")
        records += head + ciphers[suite](key).encrypt(nonce, content + b"\x17", head)
    return secret, records


@pytest.mark.parametrize("size", [1, 15, 16, 63, 64, 5000])
@pytest.mark.parametrize(
    ("suite", "number"),
    [
        ("TLS_AES_128_GCM_SHA256", 131_071),  # the last of 2**18, half of them for each direction
        ("TLS_AES_128_CCM_SHA256", 131_071),
        ("TLS_AES_128_CCM_8_SHA256", 131_071),
        ("TLS_CHACHA20_POLY1305_SHA256", 32_767),  # a quarter
    ],
)
def test_the_numbers_that_are_tried_are_bounded(suite: str, number: int, size: int) -> None:
    for beyond in (0, 1):
        secret, records = made_records(suite, number + beyond, [b"x" * size])
        known: Secrets = {CLIENT_TRAFFIC: (bytes(32),), SERVER_TRAFFIC: (secret,)}
        found = match_secrets(records, [known])
        if beyond:
            assert found is None
        else:
            assert found is not None
            assert (found.suite.name, found.by_client, found.secrets) == (suite, False, known)


def test_keys_are_updated() -> None:
    payloads = list(conversation()[0])
    for at, way in ((40, SERVER), (30, CLIENT), (20, CLIENT), (10, SERVER)):
        payloads.insert(at, (way, KEY_UPDATE))
    selected = settings(TLS13)
    assert_complete(*decoded(payloads, selected, selected))


UPDATES = {
    "one side's own": [(10, CLIENT, UPDATE), (25, SERVER, UPDATE), (26, SERVER, UPDATE)],
    "asked for": [(10, CLIENT, REQUEST), (25, SERVER, REQUEST), (40, CLIENT, REQUEST)],
    "asked for by both at once": [(10, CLIENT, REQUEST), (10, SERVER, REQUEST), (30, SERVER, REQUEST),
                                  (30, CLIENT, UPDATE), (30, CLIENT, REQUEST)],
    "before any data": [(0, SERVER, REQUEST), (0, CLIENT, REQUEST)],
}  # fmt: skip


@pytest.mark.parametrize("name", [AMQP, AMQP_10])
@pytest.mark.parametrize("updates", UPDATES.values(), ids=UPDATES)
@pytest.mark.parametrize("suite", ["TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"])
def test_keys_are_updated_by_openssl(suite: str, updates: list[tuple[int, int, bytes]], name: str) -> None:
    """The frames are those of the same traffic in clear."""
    payloads = list(conversation(name)[0])
    clear, _ = wire_of(payloads).rows()
    updated = list(payloads)
    for at, way, update in sorted(updates, key=lambda each: each[0], reverse=True):
        updated.insert(at, (way, update))
    flights, key_log = libssl_talk(updated, suite)
    rows, facts = wire_of(flights).rows(Layers(KeyLog(key_log)))
    names = ("sender", "name", "size", "channel", "arguments", "properties", "digest", "frame_type", "status")
    assert [[row[name] for name in names] for row in rows] == [[row[name] for name in names] for row in clear]
    assert (facts["tls"]["cipher_suite"], facts["undecoded_reason"]) == (suite, None)
    for side in ("client", "server"):
        ledger = facts[side]
        assert ledger["payload_bytes"] == sum(ledger[part] for part in PARTS)


def test_the_server_asks_for_another_hello() -> None:
    rows, facts = decoded(conversation()[0], settings(TLS13, keyShares=[]), settings(TLS13))
    assert_complete(rows, facts)


@pytest.mark.parametrize("then_mac", [True, False])
@pytest.mark.parametrize("mac", ["sha", "sha256", "sha384"])
def test_the_mac_of_cbc_covers_the_plaintext_or_the_ciphertext(then_mac: bool, mac: str) -> None:
    selected = settings(TLS12, cipherNames=["aes256", "aes128"], macNames=[mac], useEncryptThenMAC=then_mac)
    rows, facts = decoded(conversation()[0], selected, selected)
    assert sent(rows) == all_frames()
    assert "CBC" in facts["tls"]["cipher_suite"]


@pytest.mark.parametrize("extended", [True, False])
def test_the_master_secret_is_extended_or_not(extended: bool) -> None:
    selected = settings(TLS12, useExtendedMasterSecret=extended)
    assert_complete(*decoded(conversation()[0], selected, selected))
