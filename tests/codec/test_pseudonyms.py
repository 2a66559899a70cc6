"""Crypto-PAn against the data it was published with and another implementation; pseudonyms of names."""

from __future__ import annotations

import hashlib
from ipaddress import IPv4Address, IPv6Address, ip_address

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from yacryptopan import CryptoPAn

from codec.pseudonyms import anonymise_ipv4, anonymise_ipv6, key_of, pseudonym

# Key and traces of the sample data of the reference implementation (Xu, Fan, Ammar, Moon; 2002).
KEY = bytes.fromhex("1522178d33a4cf80130a5b1649907d10d8988f837979652762574c2d2a842202")
PUBLISHED = {
    "128.11.68.132": "135.242.180.132",
    "129.118.74.4": "134.136.186.123",
    "130.132.252.244": "133.68.164.234",
    "141.223.7.43": "141.167.8.160",
    "141.233.145.108": "141.129.237.235",
    "152.163.225.39": "151.140.114.167",
    "156.29.3.236": "147.225.12.42",
    "165.247.96.84": "162.9.99.234",
    "166.107.77.190": "160.132.178.185",
    "192.102.249.13": "252.138.62.131",
    "192.215.32.125": "252.43.47.189",
    "192.233.80.103": "252.25.108.8",
}
keys = st.binary(min_size=32, max_size=32)


def ipv4(addresses: list[str], key: bytes = KEY) -> list[str]:
    numbers = np.array([int(IPv4Address(address)) for address in addresses], np.uint32)
    return [str(IPv4Address(number)) for number in anonymise_ipv4(numbers, key).tolist()]


def ipv6(addresses: list[IPv6Address], key: bytes = KEY) -> list[IPv6Address]:
    data = np.frombuffer(b"".join(address.packed for address in addresses), np.uint8).reshape(-1, 16)
    return [IPv6Address(data.tobytes()) for data in anonymise_ipv6(data, key)]


def shared_bits(one: int, other: int, width: int) -> int:
    return width - (one ^ other).bit_length()


def test_the_published_trace() -> None:
    assert dict(zip(PUBLISHED, ipv4(list(PUBLISHED)), strict=True)) == PUBLISHED


def test_order_and_repetition_do_not_matter() -> None:
    given_, pseudonyms = list(PUBLISHED), list(PUBLISHED.values())
    assert ipv4([*reversed(given_), *given_]) == [*reversed(pseudonyms), *pseudonyms]
    assert ipv4([]) == []


@given(keys, st.lists(st.ip_addresses(v=4), min_size=1, max_size=6))
def test_ipv4_agrees_with_another_implementation(key: bytes, addresses: list[IPv4Address]) -> None:
    assert ipv4([str(a) for a in addresses], key) == [CryptoPAn(key).anonymize(str(a)) for a in addresses]


@given(keys, st.lists(st.ip_addresses(v=6), min_size=1, max_size=6))
def test_ipv6_agrees_with_another_implementation(key: bytes, addresses: list[IPv6Address]) -> None:
    assert ipv6(addresses, key) == [ip_address(CryptoPAn(key).anonymize(str(a))) for a in addresses]


def test_exactly_the_shared_prefix_is_shared_afterwards() -> None:
    """10,000 addresses: more than are worked on at a time, and nearly all of their prefixes shared."""
    numbers = np.arange(10_000, dtype=np.uint32) * 7 + 0x0A000000
    anonymised = anonymise_ipv4(numbers, KEY)
    assert len(np.unique(anonymised)) == len(numbers)
    for i in range(0, 9_999, 123):
        one, other = int(numbers[i]), int(numbers[i + 1])
        found = shared_bits(int(anonymised[i]), int(anonymised[i + 1]), 32)
        assert found == shared_bits(one, other, 32)


def test_a_key_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="the key has 16 bytes, and needs 32"):
        anonymise_ipv4(np.zeros(1, np.uint32), bytes(16))
    with pytest.raises(ValueError, match="needs 32"):
        pseudonym("orders", b"short", "queue")


def test_a_passphrase_gives_a_key_and_an_empty_one_is_refused() -> None:
    assert key_of(KEY) == KEY
    assert len(key_of(b"a passphrase")) == 32
    assert key_of(b"a passphrase") == key_of(b"a passphrase") != key_of(b"another")
    with pytest.raises(ValueError, match="the key is empty"):
        key_of(b"")


def test_a_text_is_a_passphrase_even_when_it_has_the_length_of_a_key() -> None:
    """Letters have less than 5 bits each: such a key could be guessed, and costs as long as any other passphrase."""
    text = "a passphrase of 32 letters, yes."
    assert len(text.encode()) == 32
    assert key_of(text.encode()) == text.encode()
    assert key_of(text) == hashlib.scrypt(text.encode(), salt=b"wirehare key", dklen=32, n=1 << 14, r=8, p=1)


def test_pseudonyms_are_readable_and_equal_for_equal_names_only() -> None:
    queue, key = pseudonym("orders", KEY, "queue"), pseudonym("orders", KEY, "key")
    assert queue.startswith("queue-")
    assert queue.removeprefix("queue-") == key.removeprefix("key-")
    assert len(queue) == len("queue-") + 12
    assert queue != pseudonym("orders2", KEY, "queue")
    assert queue != pseudonym("orders", bytes(32), "queue")
    assert pseudonym("", KEY, "exchange") == ""
    assert pseudonym("Bestellungen für Köln", KEY, "queue") != queue
