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


def seal(kind, name, bound, salt, plain):
    associated = netstrings(b"once seal 1", kind, name, KEY_ID, bound)
    seed = keyed_hash(b"once seal seed", associated, salt, plain)[:28]
    key = keyed_hash(b"once seal key", seed[:16])
    sealed = AESGCM(key).encrypt(seed[16:], plain, associated)
    return netstrings(KEY_ID, seed) + sealed


# The version, fingerprint, label, note, input, failure's message; the result's placement, bytes, type, location, size
# and digest; the number of the history's entries and their reasons; each step's name and result.
SECRETS = netstrings(b"1", b"", b"order-17", b"", b"", b"", b"0", b'{"paid":true}', b"application/json", b"", b"0",
                     bytes(32), b"0", b"charge", b"ch_1")

# What is stored beside it, of testing::plain_record(): the state, owner, token, attempt and revision; the times of lease,
# expiry, creation, finish and expected end; on_lapse, holder, label, history, the input's and the result's size, and the
# failure's code.
LABEL = keyed_hash(b"once seal label", b"order-17").hex()[:32]
START = 1_767_225_600_000
OWNER = b"\x01" * 16
REVISION = 1 << 20
BOUND = netstrings(*(part if isinstance(part, bytes) else str(part).encode()
                     for part in (1, OWNER, START, 1, REVISION, START + 30_000, START + 86_400_000, START, 0, 0,
                                  0, b"", LABEL.encode(), b"", 0, len(b'{"paid":true}'), b"")))

sealed = seal(b"record", b"s#golden", BOUND, b"", SECRETS).hex()
lines = "\n".join(f'    "{sealed[at:at + 100]}"' for at in range(0, len(sealed), 100))
print(f"""// Made by tests/seal/golden.py.
#pragma once

namespace once::testing {{

inline constexpr const char* golden_bytes =
{lines};
inline constexpr const char* golden_label = "{LABEL}";

}}  // namespace once::testing""")
