#include "aws/client.hpp"

#include <memory>
#include <string>
#include <utility>

#include <once/error.hpp>
#include <once/platform/system.hpp>

#include "aws/credentials.hpp"
#include "aws/endpoint.hpp"
#include "aws/http_client.hpp"
#include "aws/service_error.hpp"
#include "aws/signed_client.hpp"

namespace once::aws {

namespace {

Refusal read_json_refusal(const HttpAnswer& answer) {
  const ServiceError error = read_service_error(answer);
  const Remedy remedy = remedy_for(error.code, answer.status);
  std::string said = "HTTP status " + std::to_string(answer.status) + (error.code.empty() ? "" : ", ") + error.code +
                     (error.message.empty() ? "" : ": ") + error.message;
  if (remedy == Remedy::again) said = "another caller is writing the same record (" + said + ")";
  return {.remedy = remedy, .said = std::move(said), .time = {}};
}

class BuiltInClient final : public Client {
 public:
  BuiltInClient(ClientOptions options, Endpoint endpoint, std::shared_ptr<HttpClient> http)
      : place_(std::make_shared<Place>(Place{.url = endpoint.url(), .region = options.region})),
        target_(endpoint.path.empty() ? "/" : endpoint.path),
        content_type_(options.content_type),
        target_prefix_(options.target_prefix),
        client_(std::move(options), {.endpoint = std::move(endpoint), .read_refusal = read_json_refusal},
                std::move(http)) {}

  void call(Call call, Callback<void(Reply)> done) override {
    SignedCall signed_call{
        .target = target_,
        .headers = {{"Content-Type", content_type_}, {"X-Amz-Target", target_prefix_ + '.' + call.operation}},
        .body = std::move(call.body),
        .repeatable = call.repeatable};
    client_.call(std::move(signed_call),
                 [place = place_, operation = std::move(call.operation), done = std::move(done)](
                     SignedAnswer answer) mutable { done(reply_of(std::move(answer), operation, *place)); });
  }
  [[nodiscard]] std::string name() const override { return place_->url; }
  [[nodiscard]] ClientCounts counts() const noexcept override { return client_.counts(); }

 private:
  struct Place {
    std::string url;
    std::string region;
  };

  static Reply reply_of(SignedAnswer answer, const std::string& operation, const Place& place) {
    Reply reply;
    if (answer.http.error) {
      reply.error = std::move(answer.http.error);
      std::string& text = reply.error->message;
      text = operation + " at " + place.url + ": " + text;
      if (answer.refused) {
        text += " (region " + place.region + ", credentials from " + answer.credentials->source + ", access key " +
                answer.credentials->access_key_id + ")";
      }
      if (answer.attempts > 1) text += " (after " + std::to_string(answer.attempts) + " requests)";
      return reply;
    }
    reply.status = answer.http.status;
    reply.body = std::move(answer.http.body);
    reply.time = answer.time;
    reply.false_time = answer.false_time;
    return reply;
  }

  const std::shared_ptr<const Place> place_;  // For answers, which may outlive the client.
  const std::string target_;
  const std::string content_type_;
  const std::string target_prefix_;
  SignedClient client_;
};

void check(const ClientOptions& options) {
  const auto refuse = [](const char* what) { throw Exception(ErrorKind::misuse, what); };
  if (options.timeout < Millis{1}) refuse("timeout must be at least 1 ms");
  if (options.total_timeout < options.timeout) refuse("total_timeout must not be less than timeout");
  if (options.max_attempts < 1 || options.max_attempts > 100) refuse("max_attempts must be 1 to 100");
  if (options.max_connections < 1) refuse("max_connections must be at least 1");
  if (options.backoff < Millis{0} || options.max_backoff < options.backoff) {
    refuse("backoff must not be negative, and max_backoff not less than it");
  }
}

}  // namespace

std::unique_ptr<Client> make_client(ClientOptions options, std::shared_ptr<HttpClient> http) {
  check(options);
  if (!options.clock) options.clock = system_clock();
  if (!options.random) options.random = system_random();
  if (!options.timers) options.timers = make_system_timers(options.clock);
  if (options.region.empty()) {
    options.region = find_region(options.environment, options.profile);
  } else {
    check_region(options.region, "the option region");
  }
  Endpoint endpoint = find_endpoint(options.service, options.region, options.environment, options.profile,
                                    {options.endpoint, "the option endpoint"});
  if (!options.credentials) {
    options.credentials = make_credentials({.profile = options.profile, .environment = options.environment},
                                           {.http = http, .clock = options.clock, .random = options.random});
  }
  return std::make_unique<BuiltInClient>(std::move(options), std::move(endpoint), std::move(http));
}

std::unique_ptr<Client> make_client(ClientOptions options) {
  check(options);
  auto http = make_http_client({.max_connections = options.max_connections, .ca_file = options.ca_file});
  return make_client(std::move(options), std::move(http));
}

}  // namespace once::aws
