#include "operators/admin_token.hpp"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string_view>
#include <utility>

#include <once/error.hpp>
#include <once/platform/system.hpp>

#include "operators/answers.hpp"
#include "operators/reporter.hpp"
#include "operators/requests.hpp"
#include "platform/file.hpp"
#include "text/ascii.hpp"
#include "text/hex.hpp"
#include "text/percent.hpp"

namespace once::operators {

namespace {

using http::same_name;

constexpr std::size_t least_token_bytes = 16;
constexpr std::size_t most_token_bytes = 1024;
constexpr std::size_t most_file_bytes = std::size_t{256} * 1024;
constexpr std::size_t most_name_bytes = 64;
constexpr std::string_view blanks = " \t";

bool is_visible(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c > ' ' && c < 0x7F; });
}

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  for (;;) {
    line.remove_prefix(std::min(line.size(), line.find_first_not_of(blanks)));
    if (line.empty()) return words;
    words.push_back(line.substr(0, line.find_first_of(blanks)));
    line.remove_prefix(words.back().size());
  }
}

void set_digest(KnownToken& token, std::string_view digits) {
  const auto digest = text::from_hex(digits);
  if (!digest || digest->size() != token.digest.size()) {
    throw wrong("the digest must be 64 hexadecimal digits, the SHA-256 of the token: printf %s TOKEN | sha256sum");
  }
  std::ranges::copy(*digest, token.digest.begin());
}

// "billing 9f86d081…". Throws as token_of().
KnownToken tenant_token_of(std::string_view line) {
  const std::vector<std::string_view> words = words_of(line);
  if (words.size() != 2) throw wrong("must be a tenant's name and a digest, with blanks between");
  const std::string_view name = words[0];
  constexpr std::string_view of_users = "uid-";
  const bool is_of_user = text::lower(name).starts_with(of_users);
  if (name.size() > most_name_bytes || is_of_user || !std::ranges::all_of(name, text::is_unreserved)) {
    throw wrong("the tenant's name must be 1 to 64 letters, digits, '-', '.', '_' and '~', and not begin with uid-");
  }
  KnownToken token{.digest = {}, .identity = {.name = std::string(name)}};
  set_digest(token, words[1]);
  return token;
}

// "alice operator 9f86d081…". Throws Exception(misuse), which says what is wrong with it.
KnownToken token_of(std::string_view line) {
  const std::vector<std::string_view> words = words_of(line);
  constexpr std::size_t count = 3;
  if (words.size() != count) throw wrong("must be a name, a role and a digest, with blanks between");
  const std::string_view name = words[0];
  if (name.size() > most_name_bytes || !is_visible(name)) {
    throw wrong("the name must be 1 to 64 visible ASCII characters");
  }
  if (words[1] != "reader" && words[1] != "operator") throw wrong("the role must be reader or operator");
  KnownToken token{.digest = {}, .identity = {.name = std::string(name), .reads_only = words[1] == "reader"}};
  set_digest(token, words[2]);
  return token;
}

std::vector<KnownToken> tokens_of(const std::string& file, TokenLines of) {
  const std::string text = read_token_file(file, most_file_bytes);
  std::vector<KnownToken> tokens;
  std::map<Sha256, std::size_t> lines;  // Of each digest.
  std::size_t number = 0;
  const bool has_several = text.find_first_of(" \t#") != std::string::npos;
  for (std::string_view rest = text; has_several && !rest.empty();) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (line.ends_with('\r')) line.remove_suffix(1);
    ++number;
    line.remove_prefix(std::min(line.size(), line.find_first_not_of(blanks)));
    if (line.empty() || line.starts_with('#')) continue;
    try {
      tokens.push_back(of == TokenLines::tenants ? tenant_token_of(line) : token_of(line));
      const auto [first, is_new] = lines.emplace(tokens.back().digest, number);
      if (!is_new) throw wrong("has the digest of line " + std::to_string(first->second));
    } catch (const Exception& error) {
      throw wrong("the token file " + file + ", line " + std::to_string(number) + ": " + error.what());
    }
  }
  if (!tokens.empty()) return tokens;
  std::string_view token = text;
  while (token.ends_with('\n') || token.ends_with('\r')) token.remove_suffix(1);
  if (has_several || token.size() < least_token_bytes || token.size() > most_token_bytes || !is_visible(token)) {
    const std::string_view several = of == TokenLines::tenants ? "lines of a tenant's name and a token's SHA-256"
                                                               : "lines of a name, a role and a token's SHA-256";
    throw wrong("the token file " + file +
                " must hold one line of 16 to 1024 visible ASCII characters, as from openssl rand -hex 32, or " +
                std::string(several));
  }
  return {{.digest = sha256(token), .identity = {}}};
}

// Empty: the request has no token.
std::optional<std::string_view> token_in(const http::Request& request) {
  constexpr std::string_view scheme = "Bearer ";
  const auto lines = values_of(request, "Authorization");
  if (lines.size() != 1 || lines[0].size() <= scheme.size() || !same_name(lines[0].substr(0, scheme.size()), scheme)) {
    return std::nullopt;
  }
  std::string_view token = lines[0].substr(scheme.size());
  token.remove_prefix(std::min(token.find_first_not_of(' '), token.size()));
  return token;
}

}  // namespace

MadeTokenFile::MadeTokenFile() {
  const auto folder = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value != nullptr && *value == '/' ? value : "");
  };
  std::string in = folder("XDG_RUNTIME_DIR");
  if (in.empty()) in = folder("TMPDIR");
  if (in.empty()) in = "/tmp";
  path_ = in + "/once-admin-token-XXXXXX";
  const Fd file(mkostemp(path_.data(), O_CLOEXEC));
  const auto failed = [&](int why) {
    return Exception(ErrorKind::unavailable, "cannot make a file for the token of the operators' API in " + in + ": " +
                                                 std::strerror(why) + "; name one with --admin-token-file");
  };
  if (!file) throw failed(errno);
  std::array<std::uint8_t, 32> random{};
  system_random()->fill(random);
  const std::string line = to_hex({reinterpret_cast<const char*>(random.data()), random.size()}) + "\n";
  errno = ENOSPC;  // A write that is cut short sets none.
  const bool is_written = write(file.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size());
  if (!is_written || fchmod(file.get(), 0600) != 0) {  // The umask may have taken the owner's permissions too.
    const int why = errno;
    unlink(path_.c_str());
    throw failed(why);
  }
}

MadeTokenFile::~MadeTokenFile() { unlink(path_.c_str()); }

AdminToken::AdminToken(std::string file, std::string flag, TokenLines lines)
    : file_(std::move(file)), flag_(std::move(flag)), lines_(lines) {
  if (file_.empty()) return;
  known_ = stamp();
  tokens_ = read(true);
}

bool AdminToken::names() const {
  const std::lock_guard lock(mutex_);
  return !tokens_.empty() && !tokens_.front().identity.name.empty();
}

std::vector<KnownToken> AdminToken::read(bool is_first) const {
  std::vector<KnownToken> tokens = tokens_of(file_, lines_);
  const auto has_names = [](const std::vector<KnownToken>& all) { return !all.front().identity.name.empty(); };
  if (lines_ == TokenLines::tenants && !is_first && has_names(tokens) != has_names(tokens_)) {
    throw Exception(ErrorKind::misuse, "the token file " + file_ + " names " +
                                           (has_names(tokens) ? "tenants now" : "no tenants any more") +
                                           ", which makes all keys other ones: restart the server if you mean that");
  }
  return tokens;
}

void AdminToken::reload() {
  if (file_.empty()) return;
  const Stamp seen = stamp();
  const std::lock_guard lock(mutex_);
  tokens_ = read(false);
  known_ = seen;
}

AdminToken::Stamp AdminToken::stamp() const noexcept {
  struct stat file {};
  if (stat(file_.c_str(), &file) != 0) return {};
  return {static_cast<std::int64_t>(file.st_dev),
          static_cast<std::int64_t>(file.st_ino),
          file.st_size,
          file.st_mtim.tv_sec,
          file.st_mtim.tv_nsec,
          file.st_ctim.tv_sec,
          file.st_ctim.tv_nsec};
}

void AdminToken::catch_up() const {
  if (!follows_) return;
  const Stamp now = stamp();
  if (now == known_) return;
  constexpr std::chrono::seconds rest{1};
  const auto uptime = std::chrono::steady_clock::now();
  if (now != changing_) {
    changing_ = now;
    changing_since_ = uptime;
  }
  // Its times are the wall clock's, which may have been set back since.
  const auto changed_at = std::chrono::system_clock::from_time_t(now[5]);
  if (uptime - changing_since_ < rest && std::chrono::system_clock::now() - changed_at < 2 * rest) return;
  known_ = now;
  try {
    tokens_ = read(false);
    report("read the token file again, as it has changed: " + file_);
  } catch (const Exception& error) {
    report("the tokens from before stay in force: " + std::string(error.what()), LogLevel::err);
  }
}

// Compares digests, and all of them, so that the time reveals neither length nor content.
std::optional<KnownToken> AdminToken::find(std::string_view token) const {
  const Sha256 digest = sha256(token);
  std::optional<KnownToken> found;
  const std::lock_guard lock(mutex_);
  catch_up();
  for (const KnownToken& one : tokens_) {
    if (CRYPTO_memcmp(one.digest.data(), digest.data(), digest.size()) == 0) found = one;
  }
  return found;
}

bool AdminToken::has(const KnownToken& token) const {
  const std::lock_guard lock(mutex_);
  catch_up();
  return std::ranges::find(tokens_, token) != tokens_.end();
}

std::optional<http::Answer> AdminToken::refuse(const http::Request& request, std::optional<KnownToken>* bearer) const {
  if (is_set()) {
    const auto token = token_in(request);
    const auto known = token ? find(*token) : std::nullopt;
    if (known && bearer != nullptr) *bearer = known;
    if (known) return std::nullopt;
    return unauthorized("The token is missing or wrong",
                        "Send Authorization: Bearer with the token from the file of " + flag_ + ".");
  }
  const auto hosts = values_of(request, "Host");
  const bool from_page = !values_of(request, "Origin").empty() || !values_of(request, "Sec-Fetch-Site").empty();
  if (!from_page && hosts.size() == 1 && is_loopback_host(hosts[0])) return std::nullopt;
  return operators_problem("forbidden", 403, "Not for browsers",
                           "Without " + flag_ +
                               ", only programs on this host are answered, under localhost or a "
                               "loopback address, and never pages in browsers.");
}

}  // namespace once::operators
