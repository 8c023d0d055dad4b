#include "fake_aws/signature_check.hpp"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>

#include "fake_aws/refusal.hpp"

namespace once::testing::fake {
namespace {

constexpr std::chrono::minutes tolerance{5};
constexpr std::string_view algorithm = "AWS4-HMAC-SHA256";

[[noreturn]] void refuse_client(std::string_view type, std::string message) {
  throw Refusal{.type = std::string(coral_namespace).append(type), .message = std::move(message)};
}

std::string hex(std::string_view bytes) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string out;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    out += digits[byte >> 4];
    out += digits[byte & 15];
  }
  return out;
}

std::string sha256(std::string_view bytes) {
  std::string out(EVP_MAX_MD_SIZE, '\0');
  unsigned int size = 0;
  EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(out.data()), &size, EVP_sha256(), nullptr);
  out.resize(size);
  return out;
}

std::string hmac(std::string_view key, std::string_view text) {
  std::string out(EVP_MAX_MD_SIZE, '\0');
  unsigned int size = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(text.data()),
       text.size(), reinterpret_cast<unsigned char*>(out.data()), &size);
  out.resize(size);
  return out;
}

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> out;
  while (true) {
    const auto end = text.find(at);
    out.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return out;
    text.remove_prefix(end + 1);
  }
}

std::string_view trimmed(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

std::string percent_encoded(std::string_view text, bool keep_slash) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
                       c == '.' || c == '_' || c == '~' || (c == '/' && keep_slash);
    if (plain) {
      out += c;
    } else {
      std::array<char, 4> code{};
      std::snprintf(code.data(), code.size(), "%%%02X", static_cast<unsigned>(static_cast<unsigned char>(c)));
      out += code.data();
    }
  }
  return out;
}

// "20260101T000000Z"
std::string written(Time time) {
  const auto second = std::chrono::floor<std::chrono::seconds>(time);
  const auto day = std::chrono::floor<std::chrono::days>(second);
  const std::chrono::year_month_day date(day);
  const std::chrono::hh_mm_ss clock(second - day);
  std::array<char, 40> out{};
  std::snprintf(out.data(), out.size(), "%04d%02u%02uT%02d%02d%02dZ", static_cast<int>(date.year()),
                static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                static_cast<int>(clock.hours().count()), static_cast<int>(clock.minutes().count()),
                static_cast<int>(clock.seconds().count()));
  return out.data();
}

std::optional<Time> read_time(std::string_view text) {
  if (text.size() != 16 || text[8] != 'T' || text[15] != 'Z') return std::nullopt;
  const auto number = [text](std::size_t from, std::size_t count) {
    int value = 0;
    for (std::size_t i = from; i < from + count; ++i) {
      if (text[i] < '0' || text[i] > '9') return -1'000'000;
      value = value * 10 + (text[i] - '0');
    }
    return value;
  };
  const int month = number(4, 2);
  const int day_of_month = number(6, 2);
  if (number(0, 4) < 0 || month < 0 || day_of_month < 0 || number(9, 6) < 0) return std::nullopt;
  const std::chrono::year_month_day date{std::chrono::year(number(0, 4)),
                                         std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day_of_month))};
  if (!date.ok()) return std::nullopt;
  return Time(std::chrono::sys_days(date) + std::chrono::hours(number(9, 2)) + std::chrono::minutes(number(11, 2)) +
              std::chrono::seconds(number(13, 2)));
}

std::string canonical_query(std::string_view query) {
  std::vector<std::string> parts;
  if (!query.empty()) {
    for (const auto part : split(query, '&')) {
      // It arrives encoded; names without '=' get one.
      parts.push_back(part.find('=') == std::string_view::npos ? std::string(part) + '=' : std::string(part));
    }
  }
  std::sort(parts.begin(), parts.end());
  std::string out;
  for (const auto& part : parts) out += (out.empty() ? "" : "&") + part;
  return out;
}

std::string canonical_value(std::string_view value) {
  std::string out;
  for (const char c : trimmed(value)) {
    if (c == ' ' && out.ends_with(' ')) continue;
    out += c;
  }
  return out;
}

struct Authorization {
  std::string credential;
  std::string signed_headers;
  std::string signature;
};

Authorization read_authorization(const HttpRequest& request) {
  const std::string* header = request.header("authorization");
  if (header == nullptr) {
    refuse_client("MissingAuthenticationTokenException", "Request is missing Authentication Token");
  }
  const auto space = header->find(' ');
  if (header->substr(0, space) != algorithm) {
    refuse_client("IncompleteSignatureException", "Unsupported AWS 'algorithm': '" + header->substr(0, space) + "'.");
  }
  std::map<std::string, std::string, std::less<>> members;
  for (const auto part : split(std::string_view(*header).substr(space + 1), ',')) {
    const auto equals = part.find('=');
    if (equals == std::string_view::npos) {
      refuse_client("IncompleteSignatureException",
                    "'" + std::string(trimmed(part)) +
                        "' not a valid key=value pair (missing equal-sign) in Authorization header.");
    }
    members.emplace(trimmed(part.substr(0, equals)), trimmed(part.substr(equals + 1)));
  }
  for (const auto* name : {"Credential", "SignedHeaders", "Signature"}) {
    if (members[name].empty()) {
      refuse_client("IncompleteSignatureException",
                    std::string("Authorization header requires '") + name + "' parameter.");
    }
  }
  return {members["Credential"], members["SignedHeaders"], members["Signature"]};
}

void check_time(Time signed_at, Time now) {
  if (signed_at < now - tolerance) {
    refuse_client("InvalidSignatureException", "Signature expired: " + written(signed_at) + " is now earlier than " +
                                                   written(now - tolerance) + " (" + written(now) + " - 5 min.)");
  }
  if (signed_at > now + tolerance) {
    refuse_client("InvalidSignatureException", "Signature not yet current: " + written(signed_at) +
                                                   " is still later than " + written(now + tolerance) + " (" +
                                                   written(now) + " + 5 min.)");
  }
}

}  // namespace

const std::string* HttpRequest::header(std::string_view name) const {
  const auto found =
      std::find_if(headers.begin(), headers.end(), [name](const auto& header) { return header.first == name; });
  return found == headers.end() ? nullptr : &found->second;
}

void check_signature(const HttpRequest& request, const std::vector<FakeAccessKey>& keys, std::string_view region,
                     Time now) {
  const Authorization authorization = read_authorization(request);
  const std::string* date = request.header("x-amz-date");
  const auto signed_at = date == nullptr ? std::nullopt : read_time(*date);
  if (!signed_at) {
    refuse_client("IncompleteSignatureException",
                  "Authorization header requires existence of a 'X-Amz-Date' header such as 20260101T000000Z.");
  }
  const auto scope = split(authorization.credential, '/');
  if (scope.size() != 5) {
    refuse_client("IncompleteSignatureException",
                  "Credential must have exactly 5 slash-delimited elements, e.g. keyid/date/region/service/term");
  }

  // Who, and is it still somebody.
  const auto key = std::find_if(keys.begin(), keys.end(),
                                [&](const FakeAccessKey& known) { return known.access_key_id == scope[0]; });
  const std::string* token = request.header("x-amz-security-token");
  if (key == keys.end() || (token == nullptr ? "" : *token) != key->session_token) {
    refuse_client("UnrecognizedClientException", "The security token included in the request is invalid.");
  }
  if (key->expires_at && *key->expires_at <= now) {
    refuse_client("ExpiredTokenException", "The security token included in the request is expired");
  }
  if (scope[1] != std::string_view(*date).substr(0, 8)) {
    refuse_client("InvalidSignatureException",
                  "Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP: '" +
                      std::string(scope[1]) + "' != '" + date->substr(0, 8) + "', from '" + *date + "'.");
  }
  if (!region.empty() && scope[2] != region) {
    refuse_client("InvalidSignatureException",
                  "Credential should be scoped to a valid region, not '" + std::string(scope[2]) + "'. ");
  }
  if (scope[3] != "dynamodb") {
    refuse_client("InvalidSignatureException", "Credential should be scoped to correct service: 'dynamodb'. ");
  }
  if (scope[4] != "aws4_request") {
    refuse_client(
        "InvalidSignatureException",
        "Credential should be scoped with a valid terminator: 'aws4_request', not '" + std::string(scope[4]) + "'.");
  }
  check_time(*signed_at, now);

  // What was signed. Host and everything of AWS's own has to be.
  const auto names = split(authorization.signed_headers, ';');
  if (!std::is_sorted(names.begin(), names.end())) {
    refuse_client("InvalidSignatureException",
                  "SignedHeaders are not in order: '" + authorization.signed_headers + "'");
  }
  for (const auto& [name, value] : request.headers) {
    const bool needed = name == "host" || name.starts_with("x-amz-");
    if (needed && std::find(names.begin(), names.end(), name) == names.end()) {
      refuse_client("InvalidSignatureException", "'" + name + "' must be a 'SignedHeader' in the AWS Authorization.");
    }
  }
  std::string canonical_headers;
  for (const auto name : names) {
    std::string values;
    bool present = false;
    for (const auto& header : request.headers) {
      if (header.first != name) continue;
      values += (present ? "," : "") + canonical_value(header.second);
      present = true;
    }
    if (!present) {
      refuse_client("InvalidSignatureException",
                    "'" + std::string(name) + "' is named in SignedHeaders, but the request has no such header.");
    }
    canonical_headers.append(name).append(":").append(values).append("\n");
  }
  const auto question = request.target.find('?');
  const auto path = request.target.substr(0, question);
  const auto query = question == std::string_view::npos ? std::string_view() : request.target.substr(question + 1);
  std::string canonical(request.method);
  // Outside S3 the path is encoded once more than it is sent.
  canonical.append("\n").append(percent_encoded(path, true)).append("\n").append(canonical_query(query)).append("\n");
  canonical.append(canonical_headers).append("\n").append(authorization.signed_headers).append("\n");
  canonical.append(hex(sha256(request.body)));

  const std::string scope_text =
      std::string(scope[1]) + '/' + std::string(scope[2]) + '/' + std::string(scope[3]) + '/' + std::string(scope[4]);
  const std::string to_sign = std::string(algorithm) + '\n' + *date + '\n' + scope_text + '\n' + hex(sha256(canonical));
  std::string signing_key = "AWS4" + key->secret_access_key;
  for (std::size_t i = 1; i < scope.size(); ++i) signing_key = hmac(signing_key, scope[i]);
  if (hex(hmac(signing_key, to_sign)) != authorization.signature) {
    refuse_client(
        "InvalidSignatureException",
        "The request signature we calculated does not match the signature you provided. Check your AWS Secret "
        "Access Key and signing method. Consult the service documentation for details.\n\nThe Canonical String "
        "for this request should have been\n'" +
            canonical + "'\n\nThe String-to-Sign should have been\n'" + to_sign + "'\n");
  }
}

}  // namespace once::testing::fake
