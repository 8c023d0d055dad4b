#include "aws/credentials_search.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include <once/decide.hpp>
#include <once/error.hpp>

#include "aws/service_error.hpp"
#include "platform/file.hpp"
#include "text/rfc3339.hpp"

namespace once::aws {

namespace {

constexpr std::size_t max_token_bytes = std::size_t{64} << 10U;

// Whether a text is one word that may be in a header.
bool is_word(std::string_view text) noexcept {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < '\x7F'; });
}

std::string joined(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& part : parts) out += (out.empty() ? "" : "; ") + part;
  return out;
}

std::string member(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || !found->is_string() ? std::string{} : found->get<std::string>();
}

}  // namespace

void Cancellation::cancel() noexcept {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  changed_.notify_all();
}

bool Cancellation::cancelled() const noexcept {
  const std::lock_guard lock(mutex_);
  return cancelled_;
}

HttpAnswer Cancellation::wait(const std::shared_ptr<Cancellation>& cancellation,
                              const std::function<void(Callback<void(HttpAnswer)>)>& start) {
  auto slot = std::make_shared<std::optional<HttpAnswer>>();  // Guarded by the mutex; may outlive this call.
  start([cancellation, slot](HttpAnswer answer) {
    const std::lock_guard lock(cancellation->mutex_);
    slot->emplace(std::move(answer));
    cancellation->changed_.notify_all();
  });
  std::unique_lock lock(cancellation->mutex_);
  cancellation->changed_.wait(lock, [&] { return cancellation->cancelled_ || slot->has_value(); });
  if (!slot->has_value()) throw Exception(ErrorKind::unavailable, "abandoned, because no call waits for it");
  return std::move(**slot);
}

HttpAnswer Cancellation::exchange(const std::shared_ptr<Cancellation>& cancellation, HttpClient& http,
                                  HttpRequest request) {
  return wait(cancellation, [&](Callback<void(HttpAnswer)> done) { http.send(std::move(request), std::move(done)); });
}

std::string Search::variable(const std::string& name) const { return options.environment(name).value_or(""); }

HttpAnswer Search::fetch(const HttpRequest& request) const {
  for (std::uint32_t attempt = 1;; ++attempt) {
    HttpAnswer answer = Cancellation::exchange(cancellation, *ports.http, request);
    const bool hopeful =
        answer.error ? answer.error->kind != ErrorKind::misuse : answer.status == 429 || answer.status >= 500;
    if (!hopeful || attempt == attempts) return answer;
  }
}

Credentials search(Search& all) {
  const auto with_trail = [&](std::string text) {
    if (!all.tried.empty()) text += ". Looked before in: " + joined(all.tried);
    return text;
  };
  try {
    for (const auto place : {from_environment, from_web_identity, from_profile, from_container, from_instance}) {
      if (auto found = place(all)) return checked(std::move(*found));
    }
  } catch (const Exception& failure) {
    throw Exception(failure.kind(), with_trail(std::string("no AWS credentials: ") + failure.what()));
  }
  throw Exception(ErrorKind::misuse,
                  "no AWS credentials found. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run "
                  "`aws configure`, or give this machine a role. Looked in: " +
                      joined(all.tried));
}

std::optional<Credentials> from_environment(Search& search) {
  Credentials found;
  found.access_key_id = search.variable("AWS_ACCESS_KEY_ID");
  found.secret_access_key = search.variable("AWS_SECRET_ACCESS_KEY");
  found.session_token = search.variable("AWS_SESSION_TOKEN");
  found.source = "environment";
  if (!search.options.profile.empty()) {
    search.tried.emplace_back("environment (passed over, as a profile is named)");
    return {};
  }
  if (found.access_key_id.empty() && found.secret_access_key.empty()) {
    search.tried.emplace_back("environment (AWS_ACCESS_KEY_ID is not set)");
    return {};
  }
  if (found.access_key_id.empty() || found.secret_access_key.empty()) {
    throw Exception(ErrorKind::misuse,
                    "of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY only one is set: set both, or neither");
  }
  return found;
}

std::optional<Credentials> from_web_identity(Search& search) {
  const std::string file = search.variable("AWS_WEB_IDENTITY_TOKEN_FILE");
  if (!search.options.profile.empty()) {
    search.tried.emplace_back("web identity (passed over, as a profile is named)");
    return {};
  }
  if (file.empty()) {
    search.tried.emplace_back("web identity (AWS_WEB_IDENTITY_TOKEN_FILE is not set)");
    return {};
  }
  Role role;
  role.arn = search.variable("AWS_ROLE_ARN");
  role.session_name = search.variable("AWS_ROLE_SESSION_NAME");
  if (role.arn.empty()) {
    throw Exception(ErrorKind::misuse,
                    "AWS_WEB_IDENTITY_TOKEN_FILE is set, but AWS_ROLE_ARN is not: set both, or neither");
  }
  return assume_role_with_token(search, role, file, profile_name(search.options.environment),
                                "web identity " + file + " as " + role.arn);
}

Credentials parse_credentials(std::string_view text, std::string_view token, const std::string& place) {
  const auto refuse = [&](const std::string& what) {
    // Without the text, because it has secrets.
    throw Exception(ErrorKind::misuse, place + " gave an answer that cannot be understood: " + what);
  };
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) refuse("it is not a JSON object");
  if (const std::string code = member(json, "Code"); !code.empty() && code != "Success") {  // Of instances.
    throw Exception(ErrorKind::unavailable, place + " gave none: " + clean_text(code, 100));
  }
  Credentials found;
  found.access_key_id = member(json, "AccessKeyId");
  found.secret_access_key = member(json, "SecretAccessKey");
  if (found.access_key_id.empty()) refuse("it has no AccessKeyId");
  if (found.secret_access_key.empty()) refuse("it has no SecretAccessKey");
  found.session_token = member(json, std::string(token).c_str());
  found.source = place;
  if (const auto expires = json.find("Expiration"); expires != json.end() && !expires->is_null()) {
    found.expires_at = expires->is_string() ? text::from_rfc3339(expires->get_ref<const std::string&>()) : std::nullopt;
    if (!found.expires_at) refuse("its Expiration is not a time as in 2026-01-01T00:00:00Z");
  }
  return checked(std::move(found));
}

std::string read_token(const std::string& path, std::string_view origin) {
  const auto refuse = [&](const std::string& what) {
    throw Exception(ErrorKind::misuse,
                    "cannot read the token in " + path + ", which " + std::string(origin) + " names: " + what);
  };
  std::string text;
  const int error = read_file(path, max_token_bytes, text);
  if (error != 0) refuse(error == EFBIG ? "it is larger than 64 KiB" : std::strerror(error));
  constexpr std::string_view blanks = " \t\r\n";
  text.erase(text.find_last_not_of(blanks) + 1);
  text.erase(0, text.find_first_not_of(blanks));
  if (text.empty()) refuse("it is empty");
  if (text.find_first_of("\r\n") != std::string::npos) refuse("it has more than one line");
  return text;
}

Credentials checked(Credentials credentials) {
  const auto refuse = [&](std::string_view what) {
    throw Exception(ErrorKind::misuse, "the " + std::string(what) + " from " + credentials.source +
                                           " has characters that cannot be in one, such as a blank or a line's end: "
                                           "copy it again");
  };
  if (!is_word(credentials.access_key_id) || credentials.access_key_id.find_first_of("/,=") != std::string::npos) {
    refuse("access key id");
  }
  if (!is_word(credentials.secret_access_key)) refuse("secret access key");
  if (!is_word(credentials.session_token)) refuse("session token");
  return credentials;
}

}  // namespace once::aws
