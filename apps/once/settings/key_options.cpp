#include "settings/key_options.hpp"

#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include <once/error.hpp>

#include "output/text.hpp"
#include "settings/read_input.hpp"

namespace once::cli {

namespace {

[[noreturn]] void unavailable(const std::string& what) {
  throw Exception(ErrorKind::unavailable, what + ": " + std::strerror(errno));
}

class Digest {
 public:
  Digest() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    if (!context_ || EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) != 1) fail();
  }
  void add(std::string_view bytes) {
    if (EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) != 1) fail();
  }
  Sha256 finish() {
    Sha256 digest{};
    if (EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr) != 1) fail();
    return digest;
  }

 private:
  [[noreturn]] static void fail() { throw Exception(ErrorKind::unavailable, "the crypto library has no SHA-256"); }
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

constexpr std::size_t block_bytes = std::size_t{256} * 1024;

void check_limit(std::uint64_t size, std::uint64_t limit) {
  if (size > limit) {
    misuse("standard input is larger than " + show_size(limit) +
           "; raise --input-limit, or leave stdin out of --fingerprint");
  }
}

// A kind, and lengths before the parts, so that two different lists of parts never give the same text.
void append_part(std::string& text, std::string_view kind, std::string_view value) {
  text.append(kind).append(" ").append(std::to_string(value.size())).append(":").append(value).append("\n");
}

}  // namespace

void add_key_options(CLI::App& command, KeyOptions& options) {
  command.add_option_function<std::string>(
      "-k,--key", [&options](const std::string& text) { options.text = text, options.has_text = true; },
      "The key that names the operation");
  command.add_option_function<std::string>(
      "--key-hex", [&options](const std::string& text) { options.hex = text, options.has_hex = true; },
      "The key in hexadecimal, for keys that are not text");
  command.add_option_function<std::string>(
      "--key-file", [&options](const std::string& text) { options.file = text, options.has_file = true; },
      "A file whose whole content is the key, including a final line end; - is standard input");
  command.add_option_function<std::string>(
      "-s,--scope", [&options](const std::string& scope) { options.scope = scope, options.has_scope = true; },
      "The key's namespace (default: none)");
}

Key key_of(const KeyOptions& options) {
  const int given = int{options.has_text} + int{options.has_argument} + int{options.has_hex} + int{options.has_file};
  if (given == 0) misuse("the key is missing: give --key KEY, --key-hex HEX or --key-file FILE");
  if (given > 1) {
    misuse(options.has_argument ? "give the key as an argument, or by one of --key, --key-hex and --key-file, not both"
                                : "give only one of --key, --key-hex and --key-file");
  }
  if (options.has_hex) return {options.scope, parse_hex(options.hex, "--key-hex")};
  if (options.has_file) {
    std::string name;
    const int error = read_input(options.file, max_key_bytes, name);
    if (error == EFBIG) {
      misuse("the key in " + escaped(options.file) + " is longer than " + std::to_string(max_key_bytes) +
             " bytes: use its digest instead, as sha256sum prints it");
    }
    if (error != 0) misuse("cannot read the key from " + escaped(options.file) + ": " + std::strerror(error));
    // As `echo "$ORDER" >FILE` makes it without ORDER.
    if (name.find_first_not_of("\r\n") == std::string::npos) misuse("there is no key in " + escaped(options.file));
    return {options.scope, name};
  }
  return {options.scope, options.text};
}

void add_stored_key_options(CLI::App& command, KeyOptions& options) {
  add_key_options(command, options);
  command.get_option("--key")->description(
      "The key that names the operation; if no record has it, the label that only one record has");
  command.add_option_function<std::string>(
      "KEY", [&options](const std::string& text) { options.text = text, options.has_argument = true; },
      "The same as --key KEY");
  command.add_option("--stored-key-hex", options.stored_hex,
                     "Scope and key in one: the stored_key_hex that `once ls --json` prints");
}

RecordName name_of(const KeyOptions& options) {
  if (options.stored_hex.empty()) {
    const Key key = key_of(options);
    return {.stored = key.stored(), .raw = options.scope + "#" + std::string(key.name())};
  }
  if (options.has_text || options.has_argument || options.has_hex || options.has_file || !options.scope.empty()) {
    misuse("--stored-key-hex names both scope and key: leave out --scope, --key, --key-hex and --key-file");
  }
  std::string stored = parse_hex(options.stored_hex, "--stored-key-hex");
  if (stored.size() > max_key_bytes) misuse("--stored-key-hex is longer than any key");
  return {.stored = stored, .raw = stored};
}

FingerprintParts parse_fingerprint(std::string_view text) {
  FingerprintParts parts;
  const std::vector<std::string> words = split(text, ',');
  for (const std::string& word : words) {
    if (word == "args") {
      parts.arguments = true;
    } else if (word == "stdin") {
      parts.input = true;
    } else if (word.starts_with("env:") && word.size() > 4 && word.find('=') == std::string::npos) {
      parts.variables.push_back(word.substr(4));
    } else if (word != "none" || words.size() > 1) {
      misuse("--fingerprint is '" + escaped(text) +
             "'; write none, or a list of args, stdin and env:NAME, as in args,env:USER");
    }
  }
  std::sort(parts.variables.begin(), parts.variables.end());
  parts.variables.erase(std::unique(parts.variables.begin(), parts.variables.end()), parts.variables.end());
  return parts;
}

Input digest_input(int fd, const std::string& directory, std::uint64_t limit, std::size_t keep) {
  Input input;
  Digest digest;
  const auto take = [&](std::string_view bytes) {
    input.bytes += bytes.size();
    check_limit(input.bytes, limit);
    digest.add(bytes);
    input.beginning += bytes.substr(0, keep - std::min(keep, input.beginning.size()));
  };
  std::string block(block_bytes, '\0');
  // Also of a file, which may change before the command reads it.
  Fd spool(open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!spool) {  // A file system without O_TMPFILE.
    std::string name = directory + "/once-input-XXXXXX";
    spool.reset(mkostemp(name.data(), O_CLOEXEC));
    if (!spool)
      unavailable("cannot create a file for standard input in " + escaped(directory) +
                  ": set TMPDIR to another directory");
    unlink(name.c_str());
  }
  for (;;) {
    const ssize_t count = read(fd, block.data(), block.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) unavailable("cannot read standard input");
    if (count == 0) break;
    const auto bytes = std::string_view(block).substr(0, static_cast<std::size_t>(count));
    take(bytes);
    if (!write_all(spool.get(), bytes)) unavailable("cannot keep standard input in " + escaped(directory));
  }
  if (lseek(spool.get(), 0, SEEK_SET) != 0) unavailable("cannot read standard input back");
  input.digest = digest.finish();
  input.spool = std::move(spool);
  return input;
}

Fingerprint fingerprint_of(const FingerprintParts& parts, const std::vector<std::string>& command, const Input& input) {
  if (!parts.arguments && !parts.input && parts.variables.empty()) return {};
  const auto refuse_nothing = [&](const std::string& part, const std::string& why) {
    if (parts.allow_null_parts) return;
    misuse("--fingerprint: " + escaped(part) + " selects nothing, because " + why +
           ": correct it, leave it out of --fingerprint, or accept this with --allow-null-parts");
  };
  std::string text = "once run 1\n";
  if (parts.arguments) {
    for (const std::string& argument : command) append_part(text, "arg", argument);
  }
  for (const std::string& name : parts.variables) {
    append_part(text, "env", name);
    const char* const value = std::getenv(name.c_str());
    if (value != nullptr) append_part(text, "value", value);  // Unset and empty are not the same.
    if (value == nullptr) refuse_nothing("env:" + name, "the variable is not set");
  }
  if (parts.input && input.bytes == 0) refuse_nothing("stdin", "standard input is empty");
  if (parts.input) append_part(text, "stdin", to_hex(input.digest));
  return Fingerprint::of(text);
}

}  // namespace once::cli
