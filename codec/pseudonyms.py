"""Pseudonyms of addresses and names: with the same key, the same ones every time.

Addresses: Crypto-PAn (Xu, Fan, Ammar, Moon: "Prefix-Preserving IP Address Anonymization", ICNP 2002). Two addresses
that share their first k bits share exactly their first k bits afterwards, so subnets stay subnets. A bit is flipped
when AES of all bits before it, padded, begins with a one; IPv6 is the same over 128 bits. Every distinct
prefix is encrypted once, all of them in one call.

Names: 48 bits of a keyed BLAKE2b (RFC 7693) of the name in UTF-8. Among a million names, two have the same pseudonym
with a probability of 0.2 %.

With the key, names and addresses can be found by trial: protect it like the capture.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

KEY_BYTES = 32  # Crypto-PAn: 16 for AES, 16 for the pad
PSEUDONYM_BYTES = 6
_BLOCK = 16  # bytes of an AES block
# Distinct addresses at a time: for IPv6, 128 blocks of 16 bytes each, at most 8 MiB.
_CHUNK = 1 << 12
_NAMES = b"wirehare names"  # separates these digests from other uses of the key
_SALT = b"wirehare key"
# scrypt (RFC 7914) with 16 MiB: about 50 ms, also for every guess of a passphrase.
_SCRYPT = {"n": 1 << 14, "r": 8, "p": 1}
_KEYS = 256  # cached passphrases, so that a column of them does not cost that for each row


@lru_cache(maxsize=_KEYS)
def key_of(secret: str | bytes) -> bytes:
    """The key of 32 bytes for `secret`: 32 bytes are the key; other bytes, and every text, give their scrypt.

    Raises ValueError for an empty secret.
    """
    if not secret:
        raise ValueError("the key is empty: give 32 random bytes, or a passphrase")
    if isinstance(secret, bytes) and len(secret) == KEY_BYTES:
        return secret
    data = secret.encode() if isinstance(secret, str) else secret
    return hashlib.scrypt(data, salt=_SALT, dklen=KEY_BYTES, **_SCRYPT)


def anonymise_ipv4(addresses: NDArray[np.uint32], key: bytes) -> NDArray[np.uint32]:
    """Crypto-PAn of IPv4 addresses, uint32 (n,) in the machine's byte order (10.0.0.1 is 0x0A000001), same out.

    `key`: 32 bytes (`key_of` derives them from a passphrase). Raises ValueError for another length.
    """
    data = np.ascontiguousarray(addresses, ">u4").view(np.uint8).reshape(-1, 4)
    return _anonymised(data, key).view(">u4").reshape(-1).astype(np.uint32)


def anonymise_ipv6(addresses: NDArray[np.uint8], key: bytes) -> NDArray[np.uint8]:
    """Crypto-PAn of IPv6 addresses, uint8 (n, 16) in network order, same out.

    `key` and ValueError as for `anonymise_ipv4`. An IPv4-mapped address is anonymised as the IPv6 address that it is.
    """
    return _anonymised(np.ascontiguousarray(addresses, np.uint8).reshape(-1, 16), key)


def pseudonym(name: str, key: bytes, prefix: str) -> str:
    """The pseudonym of `name`: `prefix`, a hyphen and 12 hexadecimal digits, such as 'queue-3f9a2c71b0de'.

    The digits depend only on name and key, so a queue still matches the routing key that names it. The empty name (the
    default exchange) remains empty. `key`: 32 bytes, else ValueError.
    """
    if not name:
        return name
    digest = hashlib.blake2b(name.encode(), key=_checked(key), person=_NAMES, digest_size=PSEUDONYM_BYTES)
    return f"{prefix}-{digest.hexdigest()}"


def _checked(key: bytes) -> bytes:
    if len(key) != KEY_BYTES:
        raise ValueError(f"the key has {len(key)} bytes, and needs {KEY_BYTES}")
    return key


def _anonymised(data: NDArray[np.uint8], key: bytes) -> NDArray[np.uint8]:
    """Addresses uint8 (n, 4 or 16) in network order, anonymised; each distinct one is computed once."""
    cipher = Cipher(algorithms.AES(_checked(key)[:_BLOCK]), modes.ECB())
    pad = np.frombuffer(cipher.encryptor().update(key[_BLOCK:]), np.uint8)
    words = data.view(">u4" if data.shape[1] == 4 else ">u8").astype(np.uint64)
    order = np.lexsort(words.T[::-1])
    ordered = words[order]
    first = np.ones(len(order), bool)
    first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    distinct = data[order[first]]
    chunks = [_flips(distinct[at : at + _CHUNK], cipher, pad) for at in range(0, len(distinct), _CHUNK)]
    flips = np.concatenate(chunks) if chunks else distinct
    out = np.empty_like(data)
    out[order] = (distinct ^ flips)[np.cumsum(first) - 1]
    return out


def _flips(data: NDArray[np.uint8], cipher: Cipher[modes.ECB], pad: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The bits that the method flips in the addresses `bytes` (n, width), which are sorted and distinct: same
    shape."""
    width = data.shape[1]
    levels = np.arange(8 * width)
    masks = np.packbits(np.tri(8 * width, k=-1, dtype=np.uint8), axis=1)  # row k: the first k bits are set
    differ = np.unpackbits(data[1:] ^ data[:-1], axis=1)
    shared = np.append(-1, np.argmax(differ, axis=1))  # bits that an address has in common with the one before it
    fresh = levels[:, None] > shared[None, :]  # (levels, n): the first address with this prefix
    level, row = np.nonzero(fresh)
    blocks = np.tile(pad, (len(level), 1))
    blocks[:, :width] &= ~masks[level]
    blocks[:, :width] |= data[row] & masks[level]
    encrypted = np.frombuffer(cipher.encryptor().update(blocks.tobytes()), np.uint8)
    flipped = encrypted[::_BLOCK] >> 7
    return np.packbits(flipped[np.cumsum(fresh.reshape(-1)).reshape(fresh.shape) - 1].T, axis=1)
