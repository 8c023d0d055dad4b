// A store that writes down each call before it is sent, and each answer before anybody hears of it. And a store with a
// planted bug, which stands below it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <nlohmann/json.hpp>
#include <once/store.hpp>

namespace once::proof {

// Lines of JSON in a file that only grows. Each line is one write(2), so that a process that is killed leaves whole
// lines. Its times are CLOCK_MONOTONIC in nanoseconds, by a system call of its own: libfaketime does not reach it, and
// all processes of a host can compare them.
class Lines {
 public:
  explicit Lines(const std::string& path);  // Throws Exception(misuse) if it cannot be written.
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;
  ~Lines();

  void add(const nlohmann::ordered_json& line);
  void sync();

 private:
  const int file_;
};

std::int64_t monotonic_ns();

// What the checkers need of a record, and a digest of all its fields, so that two records are equal if their digests
// are.
nlohmann::ordered_json told(const Record* record);

// `next_id` counts the calls of a process, from 1.
std::shared_ptr<Store> observe(std::shared_ptr<Store> inner, std::shared_ptr<Lines> lines);
std::uint64_t next_id();

// With a bug by its name in docs/proof.md. Throws Exception(misuse) for a name that is none. Empty: `inner` itself.
std::shared_ptr<Store> plant(std::shared_ptr<Store> inner, const std::string& bug);

}  // namespace once::proof
