// The tables, how a file gets them, and the file's other data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <once/clock.hpp>
#include <once/gate.hpp>

#include "platform/host_boot.hpp"
#include "stores/sqlite/connection.hpp"

namespace once::stores::sqlite {

// PRAGMA application_id of our files: "ONCE" in ASCII, shown by file(1). Files from before the first format have
// "once".
inline constexpr std::int64_t application_id = 0x4F4E4345;
inline constexpr std::int64_t unreleased_application_id = 0x6F6E6365;

// PRAGMA user_version of our files.
inline constexpr std::int64_t format_version = 1;

// Whether the file has our tables; an empty file has none. Writes nothing. Throws Exception(misuse) for a file of
// another program or of another format.
bool has_tables(Connection& connection);

// Makes the tables in one transaction, unless they are there. Throws as has_tables() does.
void make_tables(Connection& connection);

// The file's random key of its hashes, so that clients cannot choose keys that collide.
struct HashKey {
  std::uint64_t first = 0;
  std::uint64_t second = 0;
  friend bool operator==(const HashKey&, const HashKey&) = default;
};
HashKey read_hash_key(Connection& connection);

// The error text when the file's hash key has changed.
std::string other_store(const std::string& path);

// SipHash-1-3 (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012) of the bytes.
std::int64_t hash_of(const HashKey& key, std::string_view bytes) noexcept;

// The mark of a file that holds, or held, sealed records. The first of them sets it in its own transaction.
bool is_marked_sealed(Connection& connection);
void mark_sealed(Connection& connection);

// The file's gate (once/gate.hpp), and changing it, with the triggers that hold every program to it. In a transaction.
// Throws SqlError.
GateMark read_gate(Connection& connection);
void set_gate(Connection& connection, const GateMark& mark);
// Lets this transaction write through the gate `filling`; call it with false before the commit.
void let_fill(Connection& connection, bool let);

// The store's clock in the file. Time = the host's uptime + offset.
struct StoredClock {
  HostBoot boot;
  Millis offset{0};
  Time set_at{};             // The wall clock at that time.
  std::string boot_in_file;  // Another one than boot.id only for a reader, which sets no clock.
};

// Reads it, or sets it after a boot of the host. Inside the lock. Another boot id than the stored one is a reboot only
// if nobody else has the store open, because no process outlives its boot. For example:
//
// 1. A claims an operation for a minute. Its lease counts on the uptime plus the stored offset.
// 2. The wall clock is corrected by an hour.
// 3. B opens the file in a container that shows another boot id. With an offset of its own from the wall clock it would
//    take over a live claim.
//
// Throws Exception(misuse) for B.
// Without `may_write` it only reads, and uses the wall clock where the file has no offset of this boot.
StoredClock settle_clock(Connection& connection, const Clock& clock, HostBoot boot, bool is_alone,
                         bool may_write = true);

// Stores that the store's time has reached `now`. Inside a transaction.
void note_time(Connection& connection, Time now);

}  // namespace once::stores::sqlite
