#include "aws/credentials.hpp"

#include <unistd.h>

#include <map>
#include <string_view>
#include <utility>

#include <once/error.hpp>
#include <once/platform/system.hpp>

#include "aws/credentials_refresh.hpp"
#include "aws/credentials_search.hpp"
#include "aws/http_client.hpp"

namespace once::aws {

namespace {

class StaticProvider final : public CredentialsProvider {
 public:
  explicit StaticProvider(Credentials credentials)
      : credentials_(std::make_shared<const Credentials>(std::move(credentials))) {}

  void get(Callback<void(CredentialsAnswer)> done) override { done({credentials_, {}}); }
  void reject(const Credentials&) override {}

 private:
  const std::shared_ptr<const Credentials> credentials_;
};

}  // namespace

Environment process_environment() {
  auto copy = std::make_shared<std::map<std::string, std::string, std::less<>>>();
  for (char** each = environ; each != nullptr && *each != nullptr; ++each) {
    const std::string_view line = *each;
    const std::size_t equals = line.find('=');
    if (equals != std::string_view::npos)
      copy->try_emplace(std::string(line.substr(0, equals)), line.substr(equals + 1));
  }
  return [copy = std::move(copy)](const std::string& name) -> std::optional<std::string> {
    const auto found = copy->find(name);
    return found == copy->end() ? std::nullopt : std::optional(found->second);
  };
}

std::shared_ptr<CredentialsProvider> static_credentials(Credentials credentials) {
  return std::make_shared<StaticProvider>(std::move(credentials));
}

std::shared_ptr<CredentialsProvider> make_credentials(CredentialsOptions options, CredentialsPorts ports) {
  Search here{.options = options, .ports = ports, .cancellation = nullptr};
  try {
    // These never change, and need no thread.
    if (auto found = from_environment(here)) return static_credentials(checked(std::move(*found)));
  } catch (const Exception&) {  // The search throws it again and reports it.
  }
  std::shared_ptr<Clock> clock = ports.clock;
  std::shared_ptr<Random> random = ports.random;
  Look look = [options = std::move(options),
               ports = std::move(ports)](const std::shared_ptr<Cancellation>& cancellation) -> Credentials {
    Search all{.options = options, .ports = ports, .cancellation = cancellation};
    return search(all);
  };
  return refreshing_credentials(std::move(look), std::move(clock), std::move(random));
}

std::shared_ptr<CredentialsProvider> default_credentials(CredentialsOptions options) {
  return make_credentials(std::move(options),
                          {.http = make_http_client(), .clock = system_clock(), .random = system_random()});
}

}  // namespace once::aws
