// What names an operation on the command line: its key, and the fingerprint of what it is asked to do.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <once/fingerprint.hpp>
#include <once/key.hpp>

#include "process/supervise.hpp"

namespace CLI {
class App;
}

namespace once::cli {

struct KeyOptions {
  std::string text;
  std::string hex;
  std::string file;
  std::string scope;
  bool has_text = false;
  bool has_hex = false;
  bool has_file = false;
  std::string stored_hex;  // Of commands on a record that is there.
};

void add_key_options(CLI::App& command, KeyOptions& options);

// Throws Exception(misuse) unless exactly one key is given, or if it cannot be one.
Key key_of(const KeyOptions& options);

// The same for a record that is there. What is wrong with it is said before a store is opened, and only the store tells
// which of the two its key is: StoreAccess::raw_scopes.
struct RecordName {
  std::string stored;
  std::string raw;
  [[nodiscard]] const std::string& in_store(bool raw_scopes) const noexcept { return raw_scopes ? raw : stored; }
};
void add_stored_key_options(CLI::App& command, KeyOptions& options);
RecordName name_of(const KeyOptions& options);

// What `--fingerprint` asks for.
struct FingerprintParts {
  bool arguments = false;
  bool input = false;
  std::vector<std::string> variables;
};

// "args", "stdin", "env:NAME", separated by commas, or "none". Throws Exception(misuse).
FingerprintParts parse_fingerprint(std::string_view text);

// Standard input, read to its end and digested.
struct Input {
  Sha256 digest{};
  Fd spool;  // The same bytes for the command, from their beginning. Empty: standard input itself, untouched.
};

// A file that is redirected to us is read in place; everything else goes to an unlinked file in `directory`, so that
// its size costs disk and not memory. Throws Exception: misuse over `limit` bytes, unavailable if it cannot be read or
// kept.
Input digest_input(int fd, const std::string& directory, std::uint64_t limit);

// Empty for parts that ask for nothing.
Fingerprint fingerprint_of(const FingerprintParts& parts, const std::vector<std::string>& command, const Sha256& input);

}  // namespace once::cli
