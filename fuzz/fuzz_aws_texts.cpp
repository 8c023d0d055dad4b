// Any bytes as the other inputs of the AWS client, besides answers of the service: the shared files (1, 2, 3), the JSON
// of containers and processes (4), the XML of STS (5); the first byte says as which.
//
// Checks, besides no crash: refused input is misuse, with a short text; accepted credentials can be in a header.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <once/error.hpp>
#include <string>
#include <string_view>

#include "aws/credentials_search.hpp"
#include "aws/service_error.hpp"
#include "aws/shared_config.hpp"
#include "text/rfc3339.hpp"

namespace {

using once::aws::Credentials;
using once::aws::SharedConfig;

void require(bool condition) {
  if (!condition) std::abort();
}

template <class Body>
void accepted_or_misuse(const Body& body) {
  try {
    body();
  } catch (const once::Exception& error) {
    require(error.kind() == once::ErrorKind::misuse || error.kind() == once::ErrorKind::unavailable);
    require(std::string_view(error.what()).size() < 400);
  }
}

void require_words(const Credentials& credentials) {
  require(!credentials.access_key_id.empty() && !credentials.secret_access_key.empty());
  for (const std::string* text :
       {&credentials.access_key_id, &credentials.secret_access_key, &credentials.session_token}) {
    for (const char c : *text) require(c > ' ' && c < '\x7F');
  }
}

void read_config(std::string_view config, std::string_view credentials) {
  const SharedConfig read = SharedConfig::parse(config, credentials);
  for (const char* name : {"default", "a", "two words", ""}) {
    const auto* const profile = read.profile(name);
    static_cast<void>(read.endpoint_url(name, "dynamodb"));
    if (profile == nullptr) {
      require(read.get(name, "region").empty());
      continue;
    }
    for (const auto& [setting, value] : *profile) {
      require(!setting.empty() && read.get(name, setting) == value);
      for (const char c : setting) require(!(c >= 'A' && c <= 'Z') && c != '\n' && c != '=');
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  accepted_or_misuse([&] {
    switch (data[0]) {
      case '1':
        return read_config(text, {});
      case '2':
        return read_config({}, text);
      case '3':
        return read_config(text.substr(0, text.size() / 2), text.substr(text.size() / 2));
      case '4':
        return require_words(once::aws::parse_credentials(text, "Token", "here"));
      case '5':
        return require_words(once::aws::parse_sts_answer(text, "here"));
      default:
        return static_cast<void>(once::text::from_rfc3339(text));
    }
  });
  return 0;
}
