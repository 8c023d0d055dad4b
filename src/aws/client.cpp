#include "aws/client.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <zlib.h>
#include <once/error.hpp>
#include <once/platform/system.hpp>

#include "aws/credentials.hpp"
#include "aws/endpoint.hpp"
#include "aws/http_client.hpp"
#include "aws/pace.hpp"
#include "aws/service_error.hpp"
#include "aws/signer.hpp"

namespace once::aws {

namespace {

// What a service says in an error, by what is to be done about it.
enum class Remedy : std::uint8_t {
  none,
  slow_down,
  again,        // Another write was under way, and this one was not carried out.
  clock,        // The signature's time is off.
  signature,    // It is wrong. Its time may be the reason, as DynamoDB has no code of its own for that.
  expired,      // The credentials: there may be newer ones, if not now then later.
  credentials,  // They are unknown: there may be newer ones.
  permission,
};

struct KnownCode {
  std::string_view code;
  Remedy remedy;
};

// https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Programming.Errors.html,
// https://docs.aws.amazon.com/STS/latest/APIReference/CommonErrors.html
constexpr std::array known_codes = std::to_array<KnownCode>({
    {"ProvisionedThroughputExceededException", Remedy::slow_down},
    {"ThrottlingException", Remedy::slow_down},
    {"Throttling", Remedy::slow_down},
    {"ThrottledException", Remedy::slow_down},
    {"RequestThrottled", Remedy::slow_down},
    {"RequestThrottledException", Remedy::slow_down},
    {"RequestLimitExceeded", Remedy::slow_down},
    {"TooManyRequestsException", Remedy::slow_down},
    {"SlowDown", Remedy::slow_down},
    {"TransactionConflictException", Remedy::again},
    {"ReplicatedWriteConflictException", Remedy::again},
    {"RequestTimeTooSkewed", Remedy::clock},
    {"RequestExpired", Remedy::clock},
    {"RequestInTheFuture", Remedy::clock},
    {"InvalidSignatureException", Remedy::signature},
    {"SignatureDoesNotMatch", Remedy::signature},
    {"AuthFailure", Remedy::signature},
    {"ExpiredTokenException", Remedy::expired},
    {"ExpiredToken", Remedy::expired},
    {"UnrecognizedClientException", Remedy::credentials},
    {"InvalidClientTokenId", Remedy::credentials},
    {"InvalidAccessKeyId", Remedy::credentials},
    {"AccessDeniedException", Remedy::permission},
    {"AccessDenied", Remedy::permission},
    {"IncompleteSignature", Remedy::permission},
    {"IncompleteSignatureException", Remedy::permission},
    {"MissingAuthenticationToken", Remedy::permission},
    {"MissingAuthenticationTokenException", Remedy::permission},
    {"OptInRequired", Remedy::permission},
});

Remedy remedy_for(const HttpAnswer& answer, std::string_view code) noexcept {
  const auto* const found =
      std::find_if(known_codes.begin(), known_codes.end(), [&](const KnownCode& known) { return known.code == code; });
  if (found != known_codes.end()) return found->remedy;
  return answer.status == 429 ? Remedy::slow_down : Remedy::none;
}

// How far the time of a signature may be from the service's clock for the service to accept it:
// https://docs.aws.amazon.com/IAM/latest/UserGuide/signing-elements.html
constexpr Millis accepted_skew = std::chrono::minutes(5);

// Can a clock that took a signature of this time, at most `since` ago, show this date? Both are whole seconds, cut off.
constexpr bool may_show(Time date, Time signed_at, Millis since) noexcept {
  constexpr Millis cut_off = std::chrono::seconds(1);
  return date >= signed_at - accepted_skew - 2 * cut_off && date <= signed_at + accepted_skew + since + cut_off;
}

// What is wrong with the bytes of an answer, or empty. Not every service tells their checksum. (A compressed answer's
// is of its compressed bytes, but none is asked for.)
std::string damage_of(const HttpAnswer& answer) {
  const std::string_view told = answer.header("x-amz-crc32");
  if (told.empty()) return {};
  const auto sum = ::crc32_z(0, reinterpret_cast<const Bytef*>(answer.body.data()), answer.body.size());
  std::uint32_t wanted = 0;
  const auto [end, error] = std::from_chars(told.data(), told.data() + told.size(), wanted);
  if (error == std::errc{} && end == told.data() + told.size() && wanted == sum) return {};
  return "the answer was damaged on its way: its x-amz-crc32 is not that of its " + std::to_string(answer.body.size()) +
         " bytes";
}

// The Date header tells whole seconds, cut off.
constexpr StoreTime store_time(Time date) noexcept { return {date + Millis{500}, Millis{500}}; }

// Up to here a signature's time is certainly not what is wrong with it; the service allows five minutes.
constexpr Millis tolerable_skew = std::chrono::minutes(1);

constexpr double tokens_for_a_success = 0.1;

struct Operation {
  Call call;
  Callback<void(Reply)> done;
  Uptime latest{};  // No request after this.
  // These five are written under the core's mutex.
  std::size_t place = 0;
  std::uint32_t attempts = 0;
  bool under_way = true;        // Not answered yet.
  bool sent = false;            // A request is on its way.
  bool maybe_executed = false;  // By a request before.
  bool clock_corrected = false;
  bool credentials_renewed = false;
  std::shared_ptr<const Credentials> credentials;
  Time signed_at{};
  Uptime sent_at{};
};

using OperationPtr = std::shared_ptr<Operation>;

Reply failed(Error error) {
  Reply reply;
  reply.error = std::move(error);
  return reply;
}

// What the calls under way share, and hold on to. The client takes away what calls back (network, credentials) when it
// is destroyed.
class Core : public std::enable_shared_from_this<Core> {
 public:
  Core(ClientOptions given, Endpoint endpoint, std::shared_ptr<HttpClient> http)
      : options(std::move(given)),
        url(endpoint.url()),
        signer_(options.service, options.region),
        http_(std::move(http)),
        tokens_(options.retry_budget) {
    request_.method = "POST";
    request_.tls = endpoint.tls;
    request_.host = std::move(endpoint.host);
    request_.port = endpoint.port;
    request_.target = endpoint.path.empty() ? "/" : endpoint.path;
    request_.headers = {{"Content-Type", options.content_type}};
    request_.timeout = options.timeout;
  }

  void start(Call call, Callback<void(Reply)> done) {
    ++calls_;
    auto operation = std::make_shared<Operation>();
    operation->call = std::move(call);
    operation->done = std::move(done);
    operation->latest = options.clock->uptime() + options.total_timeout;
    {
      const std::lock_guard lock(mutex_);
      operation->place = operations_.size();
      operations_.push_back(operation);
    }
    begin(operation);
  }

  void stop() {
    std::vector<OperationPtr> left;
    std::shared_ptr<HttpClient> http;
    std::shared_ptr<CredentialsProvider> credentials;
    {
      const std::lock_guard lock(mutex_);
      left.swap(operations_);
      for (const auto& operation : left) operation->under_way = false;
      http.swap(http_);
      credentials.swap(options.credentials);
    }
    for (const auto& operation : left) {
      const bool doubtful = operation->sent || operation->maybe_executed;
      operation->done(
          failed({doubtful ? ErrorKind::in_doubt : ErrorKind::unavailable, text(*operation, "the client was closed")}));
    }
    credentials.reset();
    http.reset();  // Waits for the network's thread, unless this is it.
  }

  [[nodiscard]] ClientCounts counts() const noexcept {
    return {.calls = calls_,
            .requests = requests_,
            .retries = retries_,
            .throttled = throttled_,
            .in_doubt = in_doubt_,
            .given_up = given_up_,
            .paced = paced_,
            .clock_corrections = clock_corrections_,
            .damaged = damaged_,
            .false_times = false_times_};
  }

  ClientOptions options;  // `credentials` under the mutex.
  const std::string url;

 private:
  // The way of a request: its turn, its credentials, its signature, its answer, and perhaps the same again.
  void begin(const OperationPtr& operation) {
    const Uptime now = options.clock->uptime();
    std::optional<Uptime> turn;
    {
      const std::lock_guard lock(mutex_);
      turn = pace_.reserve(now, operation->latest);
    }
    if (!turn) {
      ++given_up_;
      fail(operation, ErrorKind::unavailable,
           "the service is throttling, and the turn of this call would come too late");
    } else if (*turn <= now) {
      authorize(operation);
    } else {
      ++paced_;
      options.timers->at(*turn, [core = weak_from_this(), operation] {
        if (const auto self = core.lock()) self->authorize(operation);
      });
    }
  }

  void authorize(const OperationPtr& operation) {
    std::shared_ptr<CredentialsProvider> provider;
    {
      const std::lock_guard lock(mutex_);
      if (!operation->under_way) return;
      provider = options.credentials;
    }
    provider->get(
        [self = shared_from_this(), operation](CredentialsAnswer answer) { self->send(operation, std::move(answer)); });
  }

  void send(const OperationPtr& operation, CredentialsAnswer answer) {
    if (!answer.credentials) return fail(operation, answer.error.kind, answer.error.message);
    operation->credentials = std::move(answer.credentials);
    operation->signed_at = options.clock->now() + Millis{skew_ms_};
    HttpRequest request = request_;
    request.headers.emplace_back("X-Amz-Target", options.target_prefix + '.' + operation->call.operation);
    request.body = operation->call.body;
    try {
      signer_.sign(request, *operation->credentials, operation->signed_at);
    } catch (const Exception& exception) {
      return fail(operation, exception.kind(), exception.what());
    }
    std::shared_ptr<HttpClient> http;
    {
      const std::lock_guard lock(mutex_);
      if (!operation->under_way) return;
      operation->sent = true;
      operation->sent_at = options.clock->uptime();
      if (operation->attempts++ > 0) ++retries_;
      http = http_;
    }
    ++requests_;
    http->send(std::move(request),
               [self = shared_from_this(), operation](HttpAnswer got) { self->answered(operation, std::move(got)); });
  }

  void answered(const OperationPtr& operation, HttpAnswer answer) {
    {
      const std::lock_guard lock(mutex_);
      if (!operation->under_way) return;
      operation->sent = false;
    }
    if (answer.error) {
      if (answer.error->kind == ErrorKind::unavailable) return again(operation, answer.error->message);
      if (answer.error->kind == ErrorKind::in_doubt) return doubtful(operation, answer.error->message);
      return fail(operation, answer.error->kind, answer.error->message);
    }
    if (const std::string damage = damage_of(answer); !damage.empty()) {
      ++damaged_;
      return doubtful(operation, damage);
    }
    const std::optional<Time> date = parse_http_date(answer.header("date"));
    if (answer.status >= 400) {
      const ServiceError error = read_service_error(answer);
      const std::string said = "HTTP status " + std::to_string(answer.status) + (error.code.empty() ? "" : ", ") +
                               error.code + (error.message.empty() ? "" : ": ") + error.message;
      switch (remedy_for(answer, error.code)) {
        case Remedy::slow_down: {
          ++throttled_;
          {
            const std::lock_guard lock(mutex_);
            pace_.throttled(options.clock->uptime());
          }
          return again(operation, "the service is throttling (" + said + ")");
        }
        case Remedy::again:
          return again(operation, "somebody else is writing the same (" + said + ")");
        case Remedy::clock:
          return correct_clock(operation, date, Millis{1'000}, said);
        case Remedy::signature:
          return correct_clock(operation, date, tolerable_skew, said);
        case Remedy::expired:
          return renew_credentials(operation, said, ErrorKind::unavailable);
        case Remedy::credentials:
          return renew_credentials(operation, said, ErrorKind::misuse);
        case Remedy::permission:
          return refused(operation, said);
        case Remedy::none:
          if (answer.status >= 500) return doubtful(operation, said);
          break;
      }
    }
    {
      const std::lock_guard lock(mutex_);
      tokens_ = std::min<double>(options.retry_budget, tokens_ + tokens_for_a_success);
    }
    Reply reply;
    reply.status = answer.status;
    reply.body = std::move(answer.body);
    if (date) tell_time(reply, *operation, *date);
    finish(operation, std::move(reply));
  }

  void tell_time(Reply& reply, const Operation& operation, Time date) {
    const Uptime since = options.clock->uptime() - operation.sent_at;
    if (may_show(date, operation.signed_at, std::chrono::ceil<Millis>(since))) {
      reply.time = store_time(date);
    } else {
      ++false_times_;
      reply.false_time = true;
    }
  }

  void doubtful(const OperationPtr& operation, const std::string& what) {
    ++in_doubt_;
    {
      const std::lock_guard lock(mutex_);
      operation->maybe_executed = true;
    }
    if (operation->call.repeatable) return again(operation, what);
    fail(operation, ErrorKind::in_doubt, what);
  }

  // After a pause, if there is a time for it.
  void again(const OperationPtr& operation, const std::string& what) {
    if (operation->attempts >= options.max_attempts) return fail(operation, ErrorKind::unavailable, what);
    const Uptime now = options.clock->uptime();
    const Uptime at = now + pause(operation->attempts);
    bool allowed = at <= operation->latest;
    if (allowed) {
      const std::lock_guard lock(mutex_);
      allowed = tokens_ >= 1;
      if (allowed) tokens_ -= 1;
    }
    if (!allowed) {
      ++given_up_;
      return fail(operation, ErrorKind::unavailable, what);
    }
    options.timers->at(at, [core = weak_from_this(), operation] {
      if (const auto self = core.lock()) self->begin(operation);
    });
  }

  [[nodiscard]] Uptime pause(std::uint32_t attempts) const noexcept {
    Millis most = options.backoff;
    for (std::uint32_t n = 1; n < attempts && most < options.max_backoff; ++n) most *= 2;
    const Uptime bound = std::min(most, options.max_backoff);
    std::array<std::uint8_t, sizeof(std::uint64_t)> bytes{};
    options.random->fill(bytes);
    std::uint64_t drawn = 0;
    std::memcpy(&drawn, bytes.data(), bytes.size());
    return Uptime(static_cast<Uptime::rep>(drawn % (static_cast<std::uint64_t>(bound.count()) + 1)));
  }

  void correct_clock(const OperationPtr& operation, std::optional<Time> date, Millis tolerable,
                     const std::string& said) {
    if (!date || operation->clock_corrected || std::chrono::abs(*date - operation->signed_at) <= tolerable) {
      return refused(operation, said);
    }
    operation->clock_corrected = true;
    ++clock_corrections_;
    skew_ms_ = (*date - options.clock->now()).count();
    authorize(operation);
  }

  // `kind`: of the failure, if there are no others.
  void renew_credentials(const OperationPtr& operation, const std::string& said, ErrorKind kind) {
    std::shared_ptr<CredentialsProvider> provider;
    {
      const std::lock_guard lock(mutex_);
      if (!operation->under_way) return;
      provider = options.credentials;
    }
    const auto old = operation->credentials;
    provider->reject(*old);
    if (operation->credentials_renewed) return refused(operation, said, kind);
    operation->credentials_renewed = true;
    provider->get([self = shared_from_this(), operation, old, said, kind](CredentialsAnswer answer) {
      if (!answer.credentials) {
        const ErrorKind either = kind == ErrorKind::unavailable ? kind : answer.error.kind;
        return self->fail(operation, either, said + ". No other credentials: " + answer.error.message);
      }
      if (answer.credentials->access_key_id == old->access_key_id &&
          answer.credentials->secret_access_key == old->secret_access_key &&
          answer.credentials->session_token == old->session_token) {
        return self->refused(operation, said, kind);
      }
      self->send(operation, std::move(answer));
    });
  }

  void refused(const OperationPtr& operation, const std::string& said, ErrorKind kind = ErrorKind::misuse) {
    fail(operation, kind,
         said + " (region " + options.region + ", credentials from " + operation->credentials->source +
             ", access key " + operation->credentials->access_key_id + ")");
  }

  [[nodiscard]] std::string text(const Operation& operation, std::string_view what) const {
    std::string out = operation.call.operation + " at " + url + ": ";
    out += what;
    if (operation.attempts > 1) out += " (after " + std::to_string(operation.attempts) + " requests)";
    return out;
  }

  void fail(const OperationPtr& operation, ErrorKind kind, std::string_view what) {
    if (operation->maybe_executed) kind = ErrorKind::in_doubt;
    finish(operation, failed({kind, text(*operation, what)}));
  }

  void finish(const OperationPtr& operation, Reply reply) {
    {
      const std::lock_guard lock(mutex_);
      if (!operation->under_way) return;
      operation->under_way = false;
      operations_.back()->place = operation->place;
      operations_[operation->place] = std::move(operations_.back());
      operations_.pop_back();
    }
    operation->done(std::move(reply));
  }

  Signer signer_;
  HttpRequest request_;  // What all have in common.

  std::mutex mutex_;
  std::shared_ptr<HttpClient> http_;
  std::vector<OperationPtr> operations_;  // Under way, in any order.
  Pace pace_;
  double tokens_;  // Of the retry budget.

  std::atomic<Millis::rep> skew_ms_{0};  // The service's time minus ours, once it minded.
  std::atomic<std::uint64_t> calls_{0}, requests_{0}, retries_{0}, throttled_{0}, in_doubt_{0}, given_up_{0}, paced_{0},
      clock_corrections_{0}, damaged_{0}, false_times_{0};
};

class BuiltInClient final : public Client {
 public:
  explicit BuiltInClient(std::shared_ptr<Core> core) : core_(std::move(core)) {}
  BuiltInClient(const BuiltInClient&) = delete;
  BuiltInClient& operator=(const BuiltInClient&) = delete;
  ~BuiltInClient() override { core_->stop(); }

  void call(Call call, Callback<void(Reply)> done) override {
    const auto core = core_;  // The completion may destroy this client before start() is back.
    core->start(std::move(call), std::move(done));
  }
  [[nodiscard]] std::string name() const override { return core_->url; }
  [[nodiscard]] ClientCounts counts() const noexcept override { return core_->counts(); }

 private:
  const std::shared_ptr<Core> core_;
};

void check(const ClientOptions& options) {
  const auto refuse = [](const char* what) { throw Exception(ErrorKind::misuse, what); };
  if (options.timeout < Millis{1}) refuse("timeout must be at least 1 ms");
  if (options.total_timeout < options.timeout) refuse("total_timeout must not be less than timeout");
  if (options.max_attempts < 1 || options.max_attempts > 100) refuse("max_attempts is 1 to 100");
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
  Endpoint endpoint = options.endpoint.empty()
                          ? find_endpoint(options.service, options.region, options.environment, options.profile)
                          : parse_endpoint(options.endpoint, "the option endpoint");
  if (!options.credentials) {
    options.credentials = make_credentials({.profile = options.profile, .environment = options.environment},
                                           {.http = http, .clock = options.clock, .random = options.random});
  }
  return std::make_unique<BuiltInClient>(
      std::make_shared<Core>(std::move(options), std::move(endpoint), std::move(http)));
}

std::unique_ptr<Client> make_client(ClientOptions options) {
  check(options);
  auto http = make_http_client({.max_connections = options.max_connections, .ca_file = options.ca_file});
  return make_client(std::move(options), std::move(http));
}

}  // namespace once::aws
