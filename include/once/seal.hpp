// Encryption at rest: a store and an offload that seal what they keep, so that a reader of the table, the file or a
// backup of it sees no payload. docs/sensitive-data.md says what is sealed and what is not.
//
//   const auto keys = once::read_seal_keys("/etc/once/seal.keys");
//   once::Engine engine({.store = once::seal(once::stores::make_sqlite_store({.path = path}), keys)});
//
// open_store(), open_offload() and open_backend() do the same for the URL parameters seal=/etc/once/seal.keys and
// seal_command=COMMAND.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <once/offload.hpp>
#include <once/store.hpp>

namespace once {

// A key of AES-256. Its id stands in the clear in each record that it sealed.
struct SealKey {
  std::string id = {};                   // 1 to max_id_bytes letters, digits, '-', '_' or '.'.
  std::array<std::uint8_t, 32> bytes{};  // Secret.

  static constexpr std::size_t max_id_bytes = 64;  // It stands in every record.
};

// The first key seals. All of them open what was sealed with them. So a new key goes in front, and an old one stays
// until the last record that it sealed has expired. At least one; each id once.
using SealKeys = std::vector<SealKey>;

// Whether it can be the id of a key.
bool is_seal_key_id(std::string_view id) noexcept;

// A key as a key service gave it out: encrypted, so that the file of keys alone cannot seal or open.
struct WrappedSealKey {
  std::string id = {};       // As SealKey::id.
  std::string service = {};  // "kms".
  std::string bytes = {};    // The encrypted key.
  std::string with = {};     // What the service encrypted it with: the ARN of a KMS key.
};

// Asks the service for the key. Blocks. Throws Exception: misuse, unavailable, or corrupt. once/seal_kms.hpp has one
// for AWS KMS.
using SealKeyUnwrapper = std::function<SealKey(const WrappedSealKey& wrapped)>;

// Reads keys from the text of a file. Each line has an id and 32 bytes in Base64, as `openssl rand -base64 32` prints
// them: "2026-11 q83v…=". Or an id, "kms:" with the encrypted key in Base64, and the ARN of the KMS key, as `once
// seal-key new --kms` writes them. Lines that are empty or begin with '#' are skipped. Throws Exception(misuse), which
// names the line and never shows a key, also for a wrapped key without an `unwrap`, and what `unwrap` throws. `name`:
// what messages call the text.
SealKeys parse_seal_keys(std::string_view text, std::string_view name, const SealKeyUnwrapper& unwrap = {});

// The same from a file of at most 64 KiB. Exception(unavailable) if it cannot be read.
SealKeys read_seal_keys(const std::string& path, const SealKeyUnwrapper& unwrap = {});

// The same from what a command prints, such as the client of a vault of secrets: at most 64 KiB, within 60 s, then it
// is killed. No shell: blanks separate the words, quotes and backslashes work as in a POSIX shell, and nothing is
// expanded; write `sh -c '...'` for more. Its standard input is empty, its standard error is ours.
// Exception(unavailable) if it fails or takes too long; misuse if it cannot be started. Messages name its first word
// only, as the others may be secret.
//
// Keys are read once. To use new ones, open the store again: restart the program.
SealKeys seal_keys_from_command(std::string_view command, const SealKeyUnwrapper& unwrap = {});

// What a store or an offload with keys writes.
enum class SealWrites : std::uint8_t {
  sealed,  // All records are sealed when they are written.
  clear,   // In the clear, but it opens what is sealed: a step on the way to sealing, or back from it.
};

// What a store with keys believes.
enum class SealReads : std::uint8_t {
  both,    // Records in the clear too, as those from before sealing are.
  sealed,  // Sealed records only: one in the clear fails as corrupt. For stores that never had one, or have no more.
};

// A store that seals each record's result, input, steps, fingerprint, label, note, the message of its failure and the
// reasons in its history. It keeps them in Record::result as Placement::sealed, and gives records back opened. The
// store below sees a keyed hash of the label, and the rest of the record as it is: key, state, times, owner, holder,
// the failure's code.
//
// - Records that were stored before sealing began are read as they are, and sealed when they are next written.
// - A record of an unknown key is given as it is stored, as Placement::sealed. The engine and operators refuse it.
// - A record that does not open with its key fails as corrupt: other bytes under this id, or a changed record. What
//   stays in the clear is authenticated too, so a change of the state, a time or the owner is noticed. All else is
//   empty beside a sealed text: a record with a step, a note or an input there fails as corrupt too.
// - A record may be 1024 bytes smaller than the store below allows.
//
// Who can write to the store can still remove a record, and put back an older version of the same record. With
// SealReads::both they can also put a record in the clear in its place. SECURITY.md lists each attack and its result.
//
// Sealing is deterministic: the same record sealed twice has the same bytes, so that a write can be tried again.
// AES-256-GCM (NIST SP 800-38D). HMAC-SHA256 with the seal key over all that is sealed or authenticated gives 224 bits:
// 128 derive a key of its own for this text, 96 are its nonce. Two texts share key and nonce only if all 224 bits are
// equal. So the bound for random nonces, 2^32 texts for a key (SP 800-38D, 8.3), does not apply: after 2^64 texts of
// one seal key the chance of that is below 2^-96. One text may have up to 64 GiB (SP 800-38D, 5.2.1.1); stores and
// offloads keep less.
//
// Throws Exception(misuse) if a key is unfit, for SealWrites::clear with SealReads::sealed, or if other programs read
// the store's records (Capabilities::keeps_compressed is false). Thread-safe, as the store below is.
std::unique_ptr<Store> seal(std::unique_ptr<Store> store, SealKeys keys, SealWrites writes = SealWrites::sealed,
                            SealReads reads = SealReads::both);

// How many of the records that a store has listed so far were sealed, and how many were in the clear.
struct SealCounts {
  std::map<std::string, std::uint64_t> sealed = {};  // By the id of the key; "?" if it cannot be read.
  std::uint64_t clear = 0;                           // Records in the clear.
};
// Since the store was opened. Empty if it is not from seal(). Thread-safe.
std::optional<SealCounts> seal_counts(const Store& store);

// An offload that seals what it puts. What was put before sealing began is given as it is; the engine compares it with
// the digest in the record. An engine with a sealed store takes no other.
std::shared_ptr<Offload> seal(std::shared_ptr<Offload> offload, SealKeys keys, SealWrites writes = SealWrites::sealed);

}  // namespace once
