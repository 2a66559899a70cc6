"""Cipher suites that are decrypted, as data: name, version, cipher, key, hash.

Source: IANA TLS Cipher Suites; RFC 5246, 5288, 5289, 6655, 7251, 7905, 8446. Suites of one cipher differ only in the
key exchange, which a key log replaces.
"""

from __future__ import annotations

from dataclasses import dataclass

GCM, CCM, CCM_8, CHACHA, CBC = "gcm", "ccm", "ccm_8", "chacha", "cbc"
TLS12, TLS13 = 0x0303, 0x0304
SECRET_BYTES = {"sha256": 32, "sha384": 48}  # of the secrets of TLS 1.3, by hash


@dataclass(frozen=True)
class Suite:
    """`key`: octets of the cipher's key. `hash`: of the key schedule. `mac`: of CBC suites, else empty."""

    name: str
    version: int
    cipher: str
    key: int
    hash: str
    mac: str = ""


def _suites(version: int, cipher: str, key: int, hash_name: str, mac: str, named: dict[int, str]) -> dict[int, Suite]:
    return {number: Suite(name, version, cipher, key, hash_name, mac) for number, name in named.items()}


def _exchanges(form: str, numbers: dict[str, int]) -> dict[int, str]:
    return {number: f"TLS_{exchange}_WITH_{form}" for exchange, number in numbers.items()}


SUITES: dict[int, Suite] = {
    **_suites(TLS13, GCM, 16, "sha256", "", {0x1301: "TLS_AES_128_GCM_SHA256"}),
    **_suites(TLS13, GCM, 32, "sha384", "", {0x1302: "TLS_AES_256_GCM_SHA384"}),
    **_suites(TLS13, CHACHA, 32, "sha256", "", {0x1303: "TLS_CHACHA20_POLY1305_SHA256"}),
    **_suites(TLS13, CCM, 16, "sha256", "", {0x1304: "TLS_AES_128_CCM_SHA256"}),
    **_suites(TLS13, CCM_8, 16, "sha256", "", {0x1305: "TLS_AES_128_CCM_8_SHA256"}),
    **_suites(TLS12, GCM, 16, "sha256", "", _exchanges("AES_128_GCM_SHA256", {
        "RSA": 0x009C, "DHE_RSA": 0x009E, "DH_anon": 0x00A6, "PSK": 0x00A8, "DHE_PSK": 0x00AA, "RSA_PSK": 0x00AC,
        "ECDHE_ECDSA": 0xC02B, "ECDHE_RSA": 0xC02F, "ECDHE_PSK": 0xD001})),
    **_suites(TLS12, GCM, 32, "sha384", "", _exchanges("AES_256_GCM_SHA384", {
        "RSA": 0x009D, "DHE_RSA": 0x009F, "DH_anon": 0x00A7, "PSK": 0x00A9, "DHE_PSK": 0x00AB, "RSA_PSK": 0x00AD,
        "ECDHE_ECDSA": 0xC02C, "ECDHE_RSA": 0xC030, "ECDHE_PSK": 0xD002})),
    **_suites(TLS12, CCM, 16, "sha256", "", _exchanges("AES_128_CCM", {
        "RSA": 0xC09C, "DHE_RSA": 0xC09E, "PSK": 0xC0A4, "DHE_PSK": 0xC0A6, "ECDHE_ECDSA": 0xC0AC})),
    **_suites(TLS12, CCM, 32, "sha256", "", _exchanges("AES_256_CCM", {
        "RSA": 0xC09D, "DHE_RSA": 0xC09F, "PSK": 0xC0A5, "DHE_PSK": 0xC0A7, "ECDHE_ECDSA": 0xC0AD})),
    **_suites(TLS12, CCM_8, 16, "sha256", "", _exchanges("AES_128_CCM_8", {
        "RSA": 0xC0A0, "DHE_RSA": 0xC0A2, "PSK": 0xC0A8, "DHE_PSK": 0xC0AA, "ECDHE_ECDSA": 0xC0AE})),
    **_suites(TLS12, CCM_8, 32, "sha256", "", _exchanges("AES_256_CCM_8", {
        "RSA": 0xC0A1, "DHE_RSA": 0xC0A3, "PSK": 0xC0A9, "DHE_PSK": 0xC0AB, "ECDHE_ECDSA": 0xC0AF})),
    **_suites(TLS12, CHACHA, 32, "sha256", "", _exchanges("CHACHA20_POLY1305_SHA256", {
        "ECDHE_RSA": 0xCCA8, "ECDHE_ECDSA": 0xCCA9, "DHE_RSA": 0xCCAA, "PSK": 0xCCAB, "ECDHE_PSK": 0xCCAC,
        "DHE_PSK": 0xCCAD, "RSA_PSK": 0xCCAE})),
    **_suites(TLS12, CBC, 16, "sha256", "sha1", _exchanges("AES_128_CBC_SHA", {
        "RSA": 0x002F, "DHE_RSA": 0x0033, "DH_anon": 0x0034, "PSK": 0x008C, "DHE_PSK": 0x0090, "RSA_PSK": 0x0094,
        "ECDHE_ECDSA": 0xC009, "ECDHE_RSA": 0xC013, "ECDH_anon": 0xC018, "ECDHE_PSK": 0xC035})),
    **_suites(TLS12, CBC, 32, "sha256", "sha1", _exchanges("AES_256_CBC_SHA", {
        "RSA": 0x0035, "DHE_RSA": 0x0039, "DH_anon": 0x003A, "PSK": 0x008D, "DHE_PSK": 0x0091, "RSA_PSK": 0x0095,
        "ECDHE_ECDSA": 0xC00A, "ECDHE_RSA": 0xC014, "ECDH_anon": 0xC019, "ECDHE_PSK": 0xC036})),
    **_suites(TLS12, CBC, 16, "sha256", "sha256", _exchanges("AES_128_CBC_SHA256", {
        "RSA": 0x003C, "DHE_RSA": 0x0067, "DH_anon": 0x006C, "PSK": 0x00AE, "DHE_PSK": 0x00B2, "RSA_PSK": 0x00B6,
        "ECDHE_ECDSA": 0xC023, "ECDHE_RSA": 0xC027, "ECDHE_PSK": 0xC037})),
    **_suites(TLS12, CBC, 32, "sha256", "sha256", _exchanges("AES_256_CBC_SHA256", {
        "RSA": 0x003D, "DHE_RSA": 0x006B, "DH_anon": 0x006D})),
    **_suites(TLS12, CBC, 32, "sha384", "sha384", _exchanges("AES_256_CBC_SHA384", {
        "PSK": 0x00AF, "DHE_PSK": 0x00B3, "RSA_PSK": 0x00B7,
        "ECDHE_ECDSA": 0xC024, "ECDHE_RSA": 0xC028, "ECDHE_PSK": 0xC038})),
}  # fmt: skip

# Names of suites that are not decrypted.
OTHER_NAMES = {
    0x0001: "TLS_RSA_WITH_NULL_MD5", 0x0002: "TLS_RSA_WITH_NULL_SHA", 0x003B: "TLS_RSA_WITH_NULL_SHA256",
    0x0004: "TLS_RSA_WITH_RC4_128_MD5", 0x0005: "TLS_RSA_WITH_RC4_128_SHA", 0x0009: "TLS_RSA_WITH_DES_CBC_SHA",
    0x000A: "TLS_RSA_WITH_3DES_EDE_CBC_SHA", 0x0016: "TLS_DHE_RSA_WITH_3DES_EDE_CBC_SHA",
    0xC007: "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA", 0xC011: "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    0xC008: "TLS_ECDHE_ECDSA_WITH_3DES_EDE_CBC_SHA", 0xC012: "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    0x0041: "TLS_RSA_WITH_CAMELLIA_128_CBC_SHA", 0x0084: "TLS_RSA_WITH_CAMELLIA_256_CBC_SHA",
    0xC03C: "TLS_RSA_WITH_ARIA_128_CBC_SHA256",
}  # fmt: skip


def suite_name(number: int) -> str:
    """The name of a cipher suite; its number when it is not in these tables."""
    return SUITES[number].name if number in SUITES else OTHER_NAMES.get(number, f"0x{number:04x}")
