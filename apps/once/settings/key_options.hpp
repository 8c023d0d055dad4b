// An operation's key and fingerprint on the command line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <once/fingerprint.hpp>
#include <once/key.hpp>

#include "platform/file.hpp"

namespace CLI {
class App;
}

namespace once::cli {

struct KeyOptions {
  std::string text;
  std::string hex;
  std::string file;
  std::string scope;
  bool has_scope = false;
  bool has_argument = false;  // `text` was given without a flag.
  bool has_text = false;
  bool has_hex = false;
  bool has_file = false;
  std::string stored_hex;  // For commands on an existing record.
};

void add_key_options(CLI::App& command, KeyOptions& options);

// Throws Exception(misuse) unless exactly one valid key is given.
Key key_of(const KeyOptions& options);

// The same for an existing record. Errors are reported before a store is opened. Only the store shows which of the two
// is its key: StoreAccess::raw_scopes.
struct RecordName {
  std::string stored;
  std::string raw;
  [[nodiscard]] const std::string& in_store(bool raw_scopes) const noexcept { return raw_scopes ? raw : stored; }
};
void add_stored_key_options(CLI::App& command, KeyOptions& options);
RecordName name_of(const KeyOptions& options);

// The parts of `--fingerprint`.
struct FingerprintParts {
  bool arguments = false;
  bool input = false;
  std::vector<std::string> variables;
  bool allow_null_parts = false;
};

// "args", "stdin", "env:NAME", separated by commas, or "none". Throws Exception(misuse).
FingerprintParts parse_fingerprint(std::string_view text);

// Standard input, read to its end and digested.
struct Input {
  Sha256 digest{};
  Fd spool;  // The same bytes for the command, from the beginning. Empty: standard input was not read.
  std::uint64_t bytes = 0;
  std::string beginning;  // As much of it as was asked for.
};

// Everything is copied to an unlinked file in `directory`, so that it needs disk, not memory, and the command gets the
// bytes that were compared: a redirected file may change meanwhile. `keep` bytes of its beginning are kept in memory.
// Throws Exception: misuse above `limit` bytes, unavailable if it cannot be read or copied.
Input digest_input(int fd, const std::string& directory, std::uint64_t limit, std::size_t keep = 0);

// Empty without parts. Throws Exception(misuse) for a part that selects nothing, unless that is allowed: a variable
// that is not set (perhaps its name is mistyped), and standard input without a byte. `env:AMUONT` would be the same for
// all.
Fingerprint fingerprint_of(const FingerprintParts& parts, const std::vector<std::string>& command, const Input& input);

}  // namespace once::cli
