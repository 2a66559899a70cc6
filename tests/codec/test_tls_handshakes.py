"""What Python's OpenSSL cannot be asked for, made by tlslite-ng; of TLS 1.3 the key log has traffic secrets alone."""

from __future__ import annotations

from typing import Any

import pytest
from test_tls import all_frames, assert_whole, conversation, sent
from tls_lite import KEY_UPDATE, settings, talk
from tls_talks import wire_of
from wire import CLIENT, SERVER

from codec.layers.stack import Layers
from codec.layers.tls.keylog import KeyLog

TLS12, TLS13 = (3, 3), (3, 4)


def decoded(said: Any, client: Any, server: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    flights, key_log = talk(said, client, server)
    return wire_of(flights).rows(Layers(KeyLog(key_log)))


@pytest.mark.parametrize(
    ("name", "suite"),
    [
        ("aes128gcm", "TLS_AES_128_GCM_SHA256"),
        ("aes256gcm", "TLS_AES_256_GCM_SHA384"),
        ("chacha20-poly1305", "TLS_CHACHA20_POLY1305_SHA256"),
        ("aes128ccm", "TLS_AES_128_CCM_SHA256"),
        ("aes128ccm_8", "TLS_AES_128_CCM_8_SHA256"),
    ],
)
def test_suites_of_tls_1_3(name: str, suite: str) -> None:
    chosen = settings(TLS13, cipherNames=[name])
    rows, facts = decoded(conversation()[0], chosen, chosen)
    assert_whole(rows, facts)
    assert facts["tls"]["cipher_suite"] == suite


def test_keys_are_updated() -> None:
    said = list(conversation()[0])
    for at, way in ((40, SERVER), (30, CLIENT), (20, CLIENT), (10, SERVER)):
        said.insert(at, (way, KEY_UPDATE))
    chosen = settings(TLS13)
    assert_whole(*decoded(said, chosen, chosen))


def test_the_server_asks_for_another_hello() -> None:
    rows, facts = decoded(conversation()[0], settings(TLS13, keyShares=[]), settings(TLS13))
    assert_whole(rows, facts)


@pytest.mark.parametrize("then_mac", [True, False])
@pytest.mark.parametrize("mac", ["sha", "sha256", "sha384"])
def test_the_code_of_cbc_is_over_the_plaintext_or_over_what_is_encrypted(then_mac: bool, mac: str) -> None:
    chosen = settings(TLS12, cipherNames=["aes256", "aes128"], macNames=[mac], useEncryptThenMAC=then_mac)
    rows, facts = decoded(conversation()[0], chosen, chosen)
    assert sent(rows) == all_frames()
    assert "CBC" in facts["tls"]["cipher_suite"]


@pytest.mark.parametrize("extended", [True, False])
def test_the_master_secret_is_extended_or_not(extended: bool) -> None:
    chosen = settings(TLS12, useExtendedMasterSecret=extended)
    assert_whole(*decoded(conversation()[0], chosen, chosen))
