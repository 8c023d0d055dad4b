// once seal-key: makes keys for encryption at rest.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include <once/error.hpp>
#include <once/platform/system.hpp>
#include <once/seal.hpp>
#if ONCE_AWS
#include <once/seal_kms.hpp>
#endif

#include "commands/commands.hpp"
#include "output/exit_codes.hpp"
#include "output/report.hpp"
#include "output/text.hpp"
#include "platform/file.hpp"
#include "text/base64.hpp"
#include "text/rfc3339.hpp"

namespace once::cli {

namespace {

struct SealKeyCommand {
  std::string file;
  std::string id;
  std::string kms;
  std::string region;
  std::string profile;
};

// "2026-11-25"
std::string today() { return text::rfc3339(system_clock()->now()).substr(0, 10); }

std::string new_line(const SealKeyCommand& options, const std::string& id) {
  if (options.kms.empty()) {
    std::string bytes(32, '\0');
    system_random()->fill({reinterpret_cast<std::uint8_t*>(bytes.data()), bytes.size()});
    return id + " " + text::encode_base64(bytes) + "\n";
  }
#if ONCE_AWS
  return new_kms_seal_key(id, options.kms, {.region = options.region, .profile = options.profile});
#else
  throw Exception(ErrorKind::misuse, "--kms: this build is without ONCE_AWS");
#endif
}

bool has_id(std::string_view text, std::string_view id) {
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    line.remove_prefix(std::min(line.find_first_not_of(" \t\r"), line.size()));
    if (line.substr(0, line.find_first_of(" \t\r")) == id) return true;
  }
  return false;
}

// Appends the line, which is on the disk afterwards. Returns whether there were keys before.
bool append(const std::string& file, const std::string& id, std::string line) {
  constexpr std::size_t most = std::size_t{64} << 10U;  // What read_seal_keys() takes.
  const auto fail = [&](const char* what) {
    throw Exception(ErrorKind::unavailable, file + " " + what + ": " + std::strerror(errno) + ". No key was added");
  };
  const Fd fd(::open(file.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!fd) fail("cannot be opened");
  if (flock(fd.get(), LOCK_EX) != 0) fail("cannot be locked");
  std::string before;
  if (const int error = read_all(fd.get(), most, before); error != 0) {
    errno = error;
    fail("cannot be read");
  }
  if (has_id(before, id)) {
    throw Exception(ErrorKind::misuse, file + " has a key '" + id + "' already: name another with --id");
  }
  if (!before.empty() && before.back() != '\n') line.insert(0, "\n");
  if (::write(fd.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size()) || fsync(fd.get()) != 0) {
    fail("cannot be written");
  }
  return !before.empty();
}

int add(const SealKeyCommand& options) {
  const std::string id = options.id.empty() ? today() : options.id;
  if (!is_seal_key_id(id)) {
    throw Exception(ErrorKind::misuse, "--id: '" + escaped(id) + "' is not 1 to 64 letters, digits, '-', '_' or '.'");
  }
  const bool later = append(options.file, id, new_line(options, id));
  return print("added the key '" + id + "' to " + escaped(options.file) + "\n" +
               (later ? "The first line seals, all of them open. Give the file to all programs and restart them; then "
                        "move the new line to the front, and restart them again.\n"
                      : "Name the file in the store's URL: seal=" + escaped(options.file) + "\n"));
}

}  // namespace

void add_seal_key(CLI::App& app, Invocation& invocation) {
  const auto options = std::make_shared<SealKeyCommand>();
  CLI::App* const command = app.add_subcommand("seal-key", "Make a key for encryption at rest");
  command->require_subcommand(1);
  command->footer("Examples:\n  once seal-key new seal.keys");
  CLI::App* const makes = command->add_subcommand("new", "Make a key and append it to a file of keys");
  makes->add_option("--id", options->id, "The key's name, in each record that it seals (default: today's date, UTC)");
  makes->add_option("--kms", options->kms,
                    "Let this key of AWS KMS encrypt it: an id, an ARN or an alias. Programs that open the store ask\n"
                    "KMS to decrypt it");
  makes->add_option("--region", options->region, "Of KMS (default: as the AWS CLI finds it)");
  makes->add_option("--profile", options->profile, "Of the AWS configuration (default: $AWS_PROFILE)");
  makes->add_option("FILE", options->file, "The file of keys; made with mode 0600 if it is missing")->required();
  makes->footer(
      "Without --kms the file holds the key itself: back it up apart from the store.\n\n"
      "Examples:\n"
      "  once seal-key new --id 2026-11 /etc/once/seal.keys\n"
      "  once seal-key new --kms alias/once /etc/once/seal.keys");
  makes->callback([options, &invocation] { invocation.action = [options] { return add(*options); }; });
}

}  // namespace once::cli
