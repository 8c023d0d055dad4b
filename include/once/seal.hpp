// Encryption at rest: a store and an offload that seal what they keep, so that whoever reads the table, the file or a
// backup of it sees no payload. docs/sensitive-data.md says what is sealed and what is not.
//
//   const auto keys = once::read_seal_keys("/etc/once/seal.keys");
//   once::Engine engine({.store = once::seal(once::stores::make_sqlite_store({.path = path}), keys)});
//
// open_store(), open_offload() and open_backend() do the same for the URL parameter seal=/etc/once/seal.keys.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <once/offload.hpp>
#include <once/store.hpp>

namespace once {

// A key of AES-256. Its id stands in the clear in each record that it sealed.
struct SealKey {
  std::string id;  // 1 to max_id_bytes letters, digits, '-', '_' or '.'.
  std::array<std::uint8_t, 32> bytes{};

  static constexpr std::size_t max_id_bytes = 64;
};

// The first key seals. All of them open what was sealed with them. So a new key goes in front, and an old one stays
// until the last record that it sealed has expired. At least one; each id once.
using SealKeys = std::vector<SealKey>;

// Reads keys from the text of a file. Each line has an id and 32 bytes in Base64, as `openssl rand -base64 32` prints
// them: "2026-11 q83v…=". Lines that are empty or begin with '#' are skipped. Throws Exception(misuse), which names the
// line and never shows a key. `name`: what messages call the text.
SealKeys parse_seal_keys(std::string_view text, std::string_view name);

// The same from a file. Exception(unavailable) if it cannot be read.
SealKeys read_seal_keys(const std::string& path);

// A store that seals each record's result, input, steps, fingerprint, label, note, the message of its failure and the
// reasons in its history. It keeps them in Record::result as Placement::sealed, and gives records back opened. The
// store below sees a keyed hash of the label, and the rest of the record as it is: key, state, times, owner, holder,
// the failure's code.
//
// - Records that were stored before sealing began are read as they are, and sealed when they are next written.
// - A record of an unknown key is given as it is stored, as Placement::sealed. The engine and operators refuse it.
// - A record that does not open with its key fails as corrupt: other bytes under this id, or a changed record.
// - A record may be 1024 bytes smaller than the store below allows.
//
// Sealing is deterministic: the same record sealed twice has the same bytes, so that a write can be tried again.
// AES-256-GCM (NIST SP 800-38D) with a key and a nonce derived by HMAC-SHA256 from the content and the record's key,
// so that no nonce is used twice. Who can write to the store can put back an older version of the same record.
//
// Throws Exception(misuse) if a key is unfit, or if other programs read the store's records
// (Capabilities::keeps_compressed is false). Thread-safe, as the store below is.
std::unique_ptr<Store> seal(std::unique_ptr<Store> store, SealKeys keys);

// An offload that seals what it puts. What was put before sealing began is not given back: its get() fails as corrupt.
// An engine with a sealed store takes no other.
std::shared_ptr<Offload> seal(std::shared_ptr<Offload> offload, SealKeys keys);

}  // namespace once
