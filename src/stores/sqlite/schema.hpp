// The tables, how a file gets them, and what the file remembers besides its records.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <once/clock.hpp>

#include "stores/sqlite/connection.hpp"

namespace once::stores::sqlite {

// PRAGMA application_id of our files: "ONCE" in ASCII. file(1) shows it. Files from before the first format have the
// other one, "once".
inline constexpr std::int64_t application_id = 0x4F4E4345;
inline constexpr std::int64_t unreleased_application_id = 0x6F6E6365;

// PRAGMA user_version of our files.
inline constexpr std::int64_t format_version = 1;

// Whether the file has our tables; an empty file has none. Writes nothing. Throws Exception(misuse) for a file of
// another program or of another format.
bool has_tables(Connection& connection);

// Makes the tables in one transaction, unless they are there. Throws as has_tables() does.
void make_tables(Connection& connection);

// Random bytes of the file that its key hashes depend on, so that nobody who only chooses keys can make them collide.
struct HashKey {
  std::uint64_t first = 0;
  std::uint64_t second = 0;
  friend bool operator==(const HashKey&, const HashKey&) = default;
};
HashKey read_hash_key(Connection& connection);

// What to say when it has become another.
std::string other_store(const std::string& path);

// SipHash-1-3 (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012) of the bytes.
std::int64_t hash_of(const HashKey& key, std::string_view bytes) noexcept;

// The store's clock as the file keeps it. Time = uptime + offset.
struct StoredClock {
  std::string boot_id;
  Millis offset{0};
  Time set_at{};  // The wall clock at that time.
};

// Reads it, or sets it if the host was booted since. Inside the lock.
StoredClock settle_clock(Connection& connection, const Clock& clock, const std::string& boot_id);

// Notes that the store's time has come this far. Inside a transaction.
void note_time(Connection& connection, Time now);

// The kernel's name for this boot of the host. Throws Exception(unavailable).
std::string kernel_boot_id();

}  // namespace once::stores::sqlite
