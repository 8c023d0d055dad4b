#include "operators/admin_token.hpp"

#include <openssl/crypto.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include <once/error.hpp>

#include "operators/answers.hpp"
#include "operators/requests.hpp"
#include "platform/file.hpp"

namespace once::cli {

namespace {

using http::same_name;

constexpr std::size_t least_token_bytes = 16;
constexpr std::size_t most_token_bytes = 1024;

std::string read_token(const std::string& file) {
  const auto bad = [&](const std::string& why) { return Exception(ErrorKind::misuse, "the token file " + file + why); };
  struct stat kind {};
  if (stat(file.c_str(), &kind) != 0) throw bad(std::string(" cannot be read: ") + std::strerror(errno));
  if (!S_ISREG(kind.st_mode)) throw bad(" is not a regular file");
  if ((kind.st_mode & (S_IROTH | S_IWOTH)) != 0) {
    throw bad(" can be opened by every user of this host: chmod o-rwx it (in Kubernetes: defaultMode: 0440)");
  }
  std::string token;
  constexpr std::size_t line_end = 1;
  if (read_file(file, most_token_bytes + line_end, token) != 0) {
    throw bad(" cannot be read, or is longer than 1024 characters");
  }
  while (token.ends_with('\n') || token.ends_with('\r')) token.pop_back();
  const bool visible = std::all_of(token.begin(), token.end(), [](char c) { return c > ' ' && c < 0x7F; });
  if (token.size() < least_token_bytes || token.size() > most_token_bytes || !visible) {
    throw bad(" must hold one line of 16 to 1024 visible ASCII characters, as from openssl rand -hex 32");
  }
  return token;
}

// Compares digests, so that the time reveals neither length nor content.
bool has_digest(std::string_view token, const Sha256& digest) {
  const Sha256 theirs = sha256(token);
  return CRYPTO_memcmp(theirs.data(), digest.data(), digest.size()) == 0;
}

bool bears(const http::Request& request, const Sha256& digest) {
  constexpr std::string_view scheme = "Bearer ";
  const auto lines = values_of(request, "Authorization");
  if (lines.size() != 1 || lines[0].size() <= scheme.size() || !same_name(lines[0].substr(0, scheme.size()), scheme)) {
    return false;
  }
  std::string_view token = lines[0].substr(scheme.size());
  token.remove_prefix(std::min(token.find_first_not_of(' '), token.size()));
  return has_digest(token, digest);
}

}  // namespace

AdminToken::AdminToken(std::string file, std::string flag) : file_(std::move(file)), flag_(std::move(flag)) {
  reload();
}

void AdminToken::reload() {
  if (file_.empty()) return;
  const Sha256 digest = sha256(read_token(file_));
  const std::lock_guard lock(mutex_);
  digest_ = digest;
}

std::optional<Sha256> AdminToken::digest() const {
  const std::lock_guard lock(mutex_);
  return digest_;
}

bool AdminToken::is(std::string_view token) const {
  const std::optional<Sha256> ours = digest();
  return ours && has_digest(token, *ours);
}

std::optional<http::Answer> AdminToken::refuse(const http::Request& request) const {
  const std::optional<Sha256> digest = this->digest();
  if (digest) {
    if (bears(request, *digest)) return std::nullopt;
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

}  // namespace once::cli
