#include "aws/signer.hpp"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include <once/error.hpp>
#include <once/fingerprint.hpp>

#include "text/ascii.hpp"
#include "text/free_by.hpp"
#include "text/percent.hpp"
#include "text/rfc3339.hpp"

namespace once::aws {

namespace {

constexpr std::string_view signing_method = "AWS4-HMAC-SHA256";
constexpr std::size_t block_bytes = 64;  // The block of SHA-256, so the length of an HMAC's padded key.

using Context = std::unique_ptr<EVP_MD_CTX, text::FreeBy<EVP_MD_CTX_free>>;

void must(bool done) {
  if (!done) {
    throw Exception(ErrorKind::unavailable, "OpenSSL could not hash a request: check its configuration and providers");
  }
}

// Fetching costs more than a short digest.
const EVP_MD* sha256_algorithm() {
  static const std::unique_ptr<EVP_MD, text::FreeBy<EVP_MD_free>> md(EVP_MD_fetch(nullptr, "SHA256", nullptr));
  must(md != nullptr);
  return md.get();
}

// Making a context too.
EVP_MD_CTX* scratch() {
  thread_local const Context context(EVP_MD_CTX_new());
  must(context != nullptr);
  return context.get();
}

Sha256 finish(EVP_MD_CTX* context) {
  Sha256 digest;  // NOLINT(cppcoreguidelines-pro-type-member-init): written below
  unsigned length = 0;
  must(EVP_DigestFinal_ex(context, digest.data(), &length) == 1 && length == digest.size());
  return digest;
}

// An HMAC-SHA256 with its key hashed in advance (RFC 2104), which saves two of four compressions.
class Hmac {
 public:
  // A key of any length.
  explicit Hmac(std::span<const unsigned char> key) : inner_(EVP_MD_CTX_new()), outer_(EVP_MD_CTX_new()) {
    std::array<unsigned char, block_bytes> block{};
    if (key.size() > block.size()) {
      const Sha256 shorter = sha256({reinterpret_cast<const char*>(key.data()), key.size()});
      std::copy(shorter.begin(), shorter.end(), block.begin());
    } else {
      std::copy(key.begin(), key.end(), block.begin());
    }
    begin(inner_.get(), block, 0x36);
    begin(outer_.get(), block, 0x5c);
  }

  // For any number of threads at once: it only copies the saved states.
  [[nodiscard]] Sha256 operator()(std::string_view text) const {
    EVP_MD_CTX* const context = scratch();
    must(EVP_MD_CTX_copy_ex(context, inner_.get()) == 1 && EVP_DigestUpdate(context, text.data(), text.size()) == 1);
    const Sha256 inside = finish(context);
    must(EVP_MD_CTX_copy_ex(context, outer_.get()) == 1 &&
         EVP_DigestUpdate(context, inside.data(), inside.size()) == 1);
    return finish(context);
  }

 private:
  static void begin(EVP_MD_CTX* context, std::array<unsigned char, block_bytes> block, unsigned char pad) {
    for (unsigned char& byte : block) byte ^= pad;
    must(context != nullptr && EVP_DigestInit_ex2(context, sha256_algorithm(), nullptr) == 1 &&
         EVP_DigestUpdate(context, block.data(), block.size()) == 1);
  }

  Context inner_;
  Context outer_;
};

void append_lower(std::string& out, std::string_view text) {
  const std::size_t begin = out.size();
  out += text;
  for (std::size_t i = begin; i < out.size(); ++i) out[i] = text::lower(out[i]);
}

template <std::size_t N>
bool is_one_of(std::string_view name, const std::array<std::string_view, N>& names) noexcept {
  return std::any_of(names.begin(), names.end(), [&](std::string_view one) { return text::same_letters(name, one); });
}

constexpr std::array<std::string_view, 5> ours = {"Host", "X-Amz-Date", "X-Amz-Security-Token", "X-Amz-Content-Sha256",
                                                  "Authorization"};
constexpr std::array<std::string_view, 6> unsigned_headers = {
    "User-Agent", "Connection", "Expect", "Transfer-Encoding", "Accept-Encoding", "X-Amzn-Trace-Id"};

constexpr bool is_space(char c) noexcept { return c == ' ' || (c >= '\t' && c <= '\r'); }

// "20150830T123600Z"
std::string stamp(Time now) {
  std::string out = text::rfc3339(now);
  std::erase_if(out, [](char c) { return c == '-' || c == ':'; });
  return out.erase(out.find('.'), std::string_view(".000").size());
}

// Without ".", ".." and empty segments; the rest is encoded (a second time).
void append_normalised(std::string& out, std::string_view path) {
  const std::size_t begin = out.size();
  const bool slash_at_end = path.ends_with('/');
  while (!path.empty()) {
    path.remove_prefix(1);  // The slash before the segment.
    const std::string_view segment = path.substr(0, path.find('/'));
    path.remove_prefix(segment.size());
    if (segment.empty() || segment == ".") continue;
    if (segment == "..") {
      if (out.size() > begin) out.resize(out.rfind('/'));
      continue;
    }
    out += '/';
    text::append_percent_encoded(out, segment, text::is_unreserved);
  }
  if (slash_at_end || out.size() == begin) out += '/';
}

using Pair = std::pair<std::string_view, std::string_view>;

// By name, then by value: not the same as sorting "name=value", as '=' is greater than '-'.
void append_sorted_query(std::string& out, std::string_view query) {
  if (query.empty()) return;
  std::vector<Pair> pairs;
  for (bool more = true; more;) {
    const std::size_t end = query.find('&');
    const std::string_view part = query.substr(0, end);
    const std::size_t equals = part.find('=');
    pairs.emplace_back(part.substr(0, equals),
                       equals == std::string_view::npos ? std::string_view{} : part.substr(equals + 1));
    more = end != std::string_view::npos;
    if (more) query.remove_prefix(end + 1);
  }
  std::sort(pairs.begin(), pairs.end());
  for (const auto& [name, value] : pairs) {
    if (&name != &pairs.front().first) out += '&';
    out.append(name).append(1, '=').append(value);
  }
}

// Trimmed, each run of white space one blank.
void append_value(std::string& out, std::string_view value) {
  if (std::none_of(value.begin(), value.end(), is_space)) {
    out += value;
    return;
  }
  bool pending = false;
  bool begun = false;
  for (const char c : value) {
    if (is_space(c)) {
      pending = begun;
      continue;
    }
    if (pending) out += ' ';
    pending = false;
    begun = true;
    out += c;
  }
}

// The headers that are signed, sorted by name in lower case, those of one name in the order they have.
void sorted_headers(const HttpRequest& request, std::vector<Pair>& out) {
  const auto before = [](std::string_view a, std::string_view b) {
    return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end(),
                                        [](char x, char y) { return text::lower(x) < text::lower(y); });
  };
  out.clear();
  for (const auto& [name, value] : request.headers) {
    if (is_one_of(name, unsigned_headers)) continue;
    auto place = out.end();
    while (place != out.begin() && before(name, std::prev(place)->first)) --place;
    out.emplace(place, name, value);
  }
}

void append_signed_names(std::string& out, const std::vector<Pair>& headers) {
  std::string_view last;
  for (const auto& header : headers) {
    if (text::same_letters(header.first, last)) continue;
    if (!last.empty()) out += ';';
    last = header.first;
    append_lower(out, last);
  }
}

void append_headers(std::string& out, const std::vector<Pair>& headers) {
  std::string_view last;
  for (const auto& [name, value] : headers) {
    if (text::same_letters(name, last)) {
      out.back() = ',';  // Instead of the line's end.
    } else {
      append_lower(out, name);
      out += ':';
      last = name;
    }
    append_value(out, value);
    out += '\n';
  }
}

Sha256 derive(std::string_view key, std::initializer_list<std::string_view> steps) {
  Sha256 digest{};
  std::span<const unsigned char> bytes(reinterpret_cast<const unsigned char*>(key.data()), key.size());
  for (const std::string_view step : steps) {
    digest = Hmac(bytes)(step);
    bytes = digest;
  }
  return digest;
}

}  // namespace

// The key of one day for one pair of credentials, and what follows from both.
struct Signer::DayKey {
  DayKey(const Credentials& credentials, std::string_view day_, std::string_view service, std::string_view region)
      : access_key_id(credentials.access_key_id),
        secret_access_key(credentials.secret_access_key),
        day(day_),
        scope(day + "/" + std::string(region) + "/" + std::string(service) + "/aws4_request"),
        hmac(derive("AWS4" + secret_access_key, {day, region, service, "aws4_request"})) {}

  [[nodiscard]] bool is_for(const Credentials& credentials, std::string_view day_) const noexcept {
    return day == day_ && access_key_id == credentials.access_key_id &&
           secret_access_key == credentials.secret_access_key;
  }

  const std::string access_key_id;
  const std::string secret_access_key;
  const std::string day;
  const std::string scope;
  const Hmac hmac;
};

class Signer::Keys {
 public:
  std::shared_ptr<const DayKey> get(const Signer& signer, const Credentials& credentials, std::string_view day) {
    {
      const std::lock_guard lock(mutex_);
      if (last_ && last_->is_for(credentials, day)) return last_;
    }
    auto made = std::make_shared<const DayKey>(credentials, day, signer.service_, signer.region_);
    const std::lock_guard lock(mutex_);
    return last_ = std::move(made);
  }

 private:
  std::mutex mutex_;
  std::shared_ptr<const DayKey> last_;
};

Signer::Signer(std::string service, std::string region)
    : service_(std::move(service)),
      region_(std::move(region)),
      s3_(service_ == "s3"),
      keys_(std::make_unique<Keys>()) {}

Signer::~Signer() = default;

void Signer::sign(HttpRequest& request, const Credentials& credentials, Time now) {
  if (!request.target.starts_with('/') || request.target.find('#') != std::string::npos) {
    throw Exception(ErrorKind::misuse, "a request's target must begin with '/' and have no '#': '" +
                                           request.target.substr(0, request.target.find('?')) + "'");
  }
  const std::string timestamp = stamp(now);
  const std::shared_ptr<const DayKey> key = keys_->get(*this, credentials, std::string_view(timestamp).substr(0, 8));
  const std::string payload_hash = to_hex(sha256(request.body));

  auto& headers = request.headers;
  std::erase_if(headers, [](const auto& header) { return is_one_of(header.first, ours); });
  headers.reserve(headers.size() + ours.size());
  headers.emplace_back("Host", host_header(request));
  headers.emplace_back("X-Amz-Date", timestamp);
  if (!credentials.session_token.empty()) headers.emplace_back("X-Amz-Security-Token", credentials.session_token);
  if (s3_) headers.emplace_back("X-Amz-Content-Sha256", payload_hash);

  thread_local std::vector<Pair> sorted;  // Kept for its capacity, like `text` below.
  sorted_headers(request, sorted);

  std::string authorization;
  authorization.reserve(320);
  authorization.append(signing_method).append(" Credential=").append(credentials.access_key_id).append(1, '/');
  authorization.append(key->scope).append(", SignedHeaders=");
  const std::size_t names = authorization.size();
  append_signed_names(authorization, sorted);

  thread_local std::string text;  // The canonical request.
  const std::string_view target = request.target;
  const std::string_view path = target.substr(0, target.find('?'));
  text.assign(request.method).append(1, '\n');
  if (s3_) {
    text.append(path);
  } else {
    append_normalised(text, path);
  }
  text += '\n';
  if (path.size() < target.size()) append_sorted_query(text, target.substr(path.size() + 1));
  text += '\n';
  append_headers(text, sorted);
  text.append(1, '\n').append(authorization, names).append(1, '\n').append(payload_hash);
  const Sha256 canonical = sha256(text);

  // The string to sign.
  text.assign(signing_method).append(1, '\n').append(timestamp).append(1, '\n').append(key->scope).append(1, '\n');
  text += to_hex(canonical);
  authorization += ", Signature=" + to_hex(key->hmac(text));
  headers.emplace_back("Authorization", std::move(authorization));
}

std::string host_header(const HttpRequest& request) {
  const bool bare_ipv6 = request.host.find(':') != std::string::npos && !request.host.starts_with('[');
  std::string out = bare_ipv6 ? "[" + request.host + "]" : request.host;
  if (request.port != (request.tls ? 443 : 80)) out += ":" + std::to_string(request.port);
  return out;
}

}  // namespace once::aws
