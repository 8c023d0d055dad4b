"""Makes golden.hpp: a sealed record, by other code than ours. `python3 tests/seal/golden.py > tests/seal/golden.hpp`

It needs the package `cryptography`.
"""
import hashlib
import hmac

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MASTER = b"\x01" * 32
KEY_ID = b"k1"


def netstrings(*parts):
    return b"".join(str(len(part)).encode() + b":" + part + b"," for part in parts)


def keyed_hash(*parts):
    return hmac.new(MASTER, netstrings(*parts), hashlib.sha256).digest()


def seal(kind, name, salt, plain):
    seed = keyed_hash(b"once seal seed", kind, name, salt, plain)[:28]
    key = keyed_hash(b"once seal key", seed[:16])
    sealed = AESGCM(key).encrypt(seed[16:], plain, netstrings(b"once seal 1", kind, name, KEY_ID))
    return netstrings(KEY_ID, seed) + sealed


# The version, fingerprint, label, note, input, failure's message; the result's placement, bytes, type, location, size
# and digest; the number of the history's entries and their reasons; each step's name and result.
SECRETS = netstrings(b"1", b"", b"order-17", b"", b"", b"", b"0", b'{"paid":true}', b"application/json", b"", b"0",
                     bytes(32), b"0", b"charge", b"ch_1")

sealed = seal(b"record", b"s#golden", b"", SECRETS).hex()
lines = "\n".join(f'    "{sealed[at:at + 100]}"' for at in range(0, len(sealed), 100))
print(f"""// Made by tests/seal/golden.py.
#pragma once

namespace once::testing {{

inline constexpr const char* golden_bytes =
{lines};
inline constexpr const char* golden_label = "{keyed_hash(b"once seal label", b"order-17").hex()[:32]}";

}}  // namespace once::testing""")
