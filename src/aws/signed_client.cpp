#include "aws/signed_client.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <string_view>

#include <zlib.h>
#include <once/error.hpp>

#include "aws/pace.hpp"
#include "aws/signer.hpp"
#include "platform/snapshots.hpp"
#include "text/number.hpp"

namespace once::aws {

namespace {

// How far a signature's time may be from the service's clock:
// https://docs.aws.amazon.com/IAM/latest/UserGuide/signing-elements.html
constexpr Millis accepted_skew = std::chrono::minutes(5);

// Up to here a signature's time is certainly right; the service allows five minutes.
constexpr Millis tolerable_skew = std::chrono::minutes(1);

constexpr double tokens_for_a_success = 0.1;

// Whether a clock that accepted a signature of this time, at most `since` ago, can show this date. Both are truncated
// to seconds.
constexpr bool may_show(Time date, Time signed_at, Millis since) noexcept {
  constexpr Millis cut_off = std::chrono::seconds(1);
  return date >= signed_at - accepted_skew - 2 * cut_off && date <= signed_at + accepted_skew + since + cut_off;
}

// The Date header is truncated to seconds.
constexpr StoreTime store_time(Time date) noexcept { return {date + Millis{500}, Millis{500}}; }

// What is wrong with the bytes of an answer, or empty. Not every service sends a checksum. (For a compressed answer it
// is of the compressed bytes, but we request none.)
std::string damage_of(const HttpAnswer& answer) {
  const std::string_view told = answer.header("x-amz-crc32");
  if (told.empty()) return {};
  const auto sum = ::crc32_z(0, reinterpret_cast<const Bytef*>(answer.body.data()), answer.body.size());
  if (text::parse_whole<std::uint32_t>(told) == sum) return {};
  return "the answer was damaged on its way: its x-amz-crc32 is not that of its " + std::to_string(answer.body.size()) +
         " bytes";
}

struct Operation {
  SignedCall call;
  Callback<void(SignedAnswer)> done;
  Uptime latest{};  // No request after this.
  // These five are written under the core's mutex.
  std::size_t place = 0;
  std::uint32_t attempts = 0;
  bool under_way = true;        // Not answered yet.
  bool sent = false;            // A request is on its way.
  bool maybe_executed = false;  // By an earlier request.
  bool clock_corrected = false;
  bool credentials_renewed = false;
  std::string throttled;  // The last refusal of that kind.
  SignedAnswer answer;
  Time signed_at{};
  Uptime sent_at{};
};

using OperationPtr = std::shared_ptr<Operation>;

}  // namespace

// Shared and owned by running calls. The client's destructor removes network and credentials, which call back.
class SignedClient::Core : public std::enable_shared_from_this<Core> {
 public:
  Core(ClientOptions options, ServiceTraits traits, std::shared_ptr<HttpClient> http)
      : options_(std::move(options)),
        traits_(std::move(traits)),
        signer_(options_.service, options_.region),
        http_(std::move(http)),
        tokens_(options_.retry_budget) {
    if (options_.timers) options_.timers->make_ready();  // Before the first call: a retry may finish a claim.
  }

  void start(SignedCall call, Callback<void(SignedAnswer)> done) {
    ++calls_;
    auto operation = std::make_shared<Operation>();
    operation->attempts = call.attempts_made;
    operation->call = std::move(call);
    operation->done = std::move(done);
    operation->latest = options_.clock->uptime() + options_.total_timeout;
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
      credentials.swap(options_.credentials);
    }
    for (const auto& operation : left) {
      const bool doubtful = traits_.tells_doubt && (operation->sent || operation->maybe_executed);
      SignedAnswer answer;  // A copy, because another thread may use the operation.
      answer.http.error = Error{doubtful ? ErrorKind::in_doubt : ErrorKind::unavailable, "the client was closed"};
      answer.attempts = operation->attempts;
      operation->done(std::move(answer));
    }
    credentials.reset();
    http.reset();  // Waits for the network's thread, unless called on it.
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

 private:
  // The steps of a request: its turn, credentials, signature, answer, and perhaps a retry.
  void begin(const OperationPtr& operation) {
    const Uptime now = options_.clock->uptime();
    std::optional<Uptime> turn;
    {
      const std::lock_guard lock(mutex_);
      turn = pace_.reserve(now, operation->latest);
    }
    if (!turn) {
      ++given_up_;
      fail(operation, ErrorKind::unavailable,
           operation->throttled.empty()
               ? "the service is throttling, and the turn of this call would come too late"
               : "the turn of this call's next request would come too late: " + operation->throttled);
    } else if (*turn <= now || !options_.timers) {
      authorize(operation);
    } else {
      ++paced_;
      later(*turn, operation, &Core::authorize);
    }
  }

  // A step after a pause. `timers` may be the caller's: if they refuse, the call fails.
  void later(Uptime at, const OperationPtr& operation, void (Core::*step)(const OperationPtr&)) {
    try {
      options_.timers->at(at, [core = weak_from_this(), operation, step] {
        if (const auto self = core.lock()) (self.get()->*step)(operation);
      });
    } catch (const Exception& error) {
      fail(operation, error.kind(), error.what());
    }
  }

  void authorize(const OperationPtr& operation) {
    const auto provider = credentials_for(operation);
    if (!provider) return;
    provider->get(
        [self = shared_from_this(), operation](CredentialsAnswer answer) { self->send(operation, std::move(answer)); });
  }

  // Null: it is over.
  std::shared_ptr<CredentialsProvider> credentials_for(const OperationPtr& operation) {
    const std::lock_guard lock(mutex_);
    return operation->under_way ? options_.credentials : nullptr;
  }

  void send(const OperationPtr& operation, CredentialsAnswer answer) {
    if (!answer.credentials) return fail(operation, answer.error.kind, answer.error.message);
    const SignedCall& call = operation->call;
    operation->answer.credentials = std::move(answer.credentials);
    const unsigned now = snapshots();
    if (skew_from_.exchange(now) != now) skew_ms_ = 0;
    operation->signed_at = options_.clock->now() + Millis{skew_ms_};
    HttpRequest request{.method = call.method,
                        .tls = traits_.endpoint.tls,
                        .host = traits_.endpoint.host,
                        .port = traits_.endpoint.port,
                        .target = call.target,
                        .headers = {},
                        .body = call.body,
                        .timeout = options_.timeout};
    request.headers.reserve(call.headers.size() + 5);  // Room for the signer's headers.
    request.headers = call.headers;
    try {
      signer_.sign(request, *operation->answer.credentials, operation->signed_at);
    } catch (const Exception& exception) {
      return fail(operation, exception.kind(), exception.what());
    }
    std::shared_ptr<HttpClient> http;
    {
      const std::lock_guard lock(mutex_);
      if (!operation->under_way) return;
      operation->sent = true;
      operation->sent_at = options_.clock->uptime();
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
    HttpAnswer& got = operation->answer.http;
    got = std::move(answer);
    if (got.error) {
      const Error error = std::move(*std::exchange(got.error, std::nullopt));
      if (error.kind == ErrorKind::unavailable) return again(operation, error.message);
      if (error.kind == ErrorKind::in_doubt) return doubtful(operation, error.message);
      return fail(operation, error.kind, error.message);
    }
    if (const std::string damage = damage_of(got); !damage.empty()) {
      ++damaged_;
      return doubtful(operation, damage);
    }
    const std::optional<Time> date = parse_http_date(got.header("date"));
    const Refusal refusal = got.status < 400 ? Refusal{} : traits_.read_refusal(got);
    switch (refusal.remedy) {
      case Remedy::slow_down: {
        ++throttled_;
        operation->throttled = "the service is throttling (" + refusal.said + ")";
        {
          const std::lock_guard lock(mutex_);
          pace_.throttled(options_.clock->uptime());
        }
        return again(operation, operation->throttled, true);
      }
      case Remedy::again:
        return again(operation, refusal.said);
      case Remedy::clock:
        return correct_clock(operation, refusal, refusal.time ? refusal.time : date, Millis{1'000});
      case Remedy::signature:
        return correct_clock(operation, refusal, date, tolerable_skew);
      case Remedy::expired:
        return renew_credentials(operation, refusal.said, ErrorKind::unavailable);
      case Remedy::credentials:
        return renew_credentials(operation, refusal.said, ErrorKind::misuse);
      case Remedy::permission:
        return refused(operation, refusal.said);
      case Remedy::doubtful:
        return doubtful(operation, refusal.said);
      case Remedy::none:
        break;
    }
    {
      const std::lock_guard lock(mutex_);
      tokens_ = std::min<double>(options_.retry_budget, tokens_ + tokens_for_a_success);
    }
    if (date) tell_time(*operation, *date);
    finish(operation);
  }

  void tell_time(Operation& operation, Time date) {
    const Uptime since = options_.clock->uptime() - operation.sent_at;
    if (may_show(date, operation.signed_at, std::chrono::ceil<Millis>(since))) {
      operation.answer.time = store_time(date);
    } else {
      ++false_times_;
      operation.answer.false_time = true;
    }
  }

  void doubtful(const OperationPtr& operation, const std::string& what) {
    ++in_doubt_;
    if (!traits_.tells_doubt) return again(operation, what);
    {
      const std::lock_guard lock(mutex_);
      operation->maybe_executed = true;
    }
    if (operation->call.repeatable) return again(operation, what);
    fail(operation, ErrorKind::in_doubt, what);
  }

  // Retries after a pause, if there is time. A throttled request is retried for as long as there is time: the service
  // has not failed, and the pace bounds the requests.
  void again(const OperationPtr& operation, const std::string& what, bool throttled = false) {
    const bool until_late = throttled && options_.max_attempts > 1 && options_.timers;
    if (operation->attempts >= options_.max_attempts && !until_late) {
      return fail(operation, ErrorKind::unavailable, what);
    }
    const Uptime now = options_.clock->uptime();
    const Uptime at = options_.timers ? now + pause(operation->attempts) : now;
    bool allowed = at <= operation->latest;
    if (allowed && !until_late) {
      const std::lock_guard lock(mutex_);
      allowed = tokens_ >= 1;
      if (allowed) tokens_ -= 1;
    }
    if (!allowed) {
      ++given_up_;
      return fail(operation, ErrorKind::unavailable, what);
    }
    if (!options_.timers) return begin(operation);
    later(at, operation, &Core::begin);
  }

  [[nodiscard]] Uptime pause(std::uint32_t attempts) const noexcept {
    Millis most = options_.backoff;
    for (std::uint32_t n = 1; n < attempts && most < options_.max_backoff; ++n) most *= 2;
    const Uptime bound = std::min(most, options_.max_backoff);
    std::array<std::uint8_t, sizeof(std::uint64_t)> bytes{};
    options_.random->fill(bytes);
    std::uint64_t drawn = 0;
    std::memcpy(&drawn, bytes.data(), bytes.size());
    return Uptime(static_cast<Uptime::rep>(drawn % (static_cast<std::uint64_t>(bound.count()) + 1)));
  }

  void correct_clock(const OperationPtr& operation, const Refusal& refusal, std::optional<Time> told,
                     Millis tolerable) {
    if (!told || operation->clock_corrected || std::chrono::abs(*told - operation->signed_at) <= tolerable) {
      return refused(operation, refusal.said);
    }
    operation->clock_corrected = true;
    ++clock_corrections_;
    skew_ms_ = (*told - options_.clock->now()).count();
    authorize(operation);
  }

  // `kind`: of the error if there are no other credentials.
  void renew_credentials(const OperationPtr& operation, const std::string& said, ErrorKind kind) {
    const auto provider = credentials_for(operation);
    if (!provider) return;
    const auto old = operation->answer.credentials;
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
    operation->answer.refused = true;
    fail(operation, kind, said);
  }

  void fail(const OperationPtr& operation, ErrorKind kind, std::string what) {
    if (operation->maybe_executed) kind = ErrorKind::in_doubt;
    operation->answer.http.error = Error{kind, std::move(what)};
    finish(operation);
  }

  void finish(const OperationPtr& operation) {
    {
      const std::lock_guard lock(mutex_);
      if (!operation->under_way) return;
      operation->under_way = false;
      operations_.back()->place = operation->place;
      operations_[operation->place] = std::move(operations_.back());
      operations_.pop_back();
    }
    operation->answer.attempts = operation->attempts;
    operation->answer.call = std::move(operation->call);
    operation->done(std::move(operation->answer));
  }

  ClientOptions options_;  // Its `credentials` are guarded by the mutex.
  const ServiceTraits traits_;
  Signer signer_;

  std::mutex mutex_;
  std::shared_ptr<HttpClient> http_;
  std::vector<OperationPtr> operations_;  // Under way, in any order.
  Pace pace_;
  double tokens_;  // Of the retry budget.

  std::atomic<Millis::rep> skew_ms_{0};           // The service's time minus ours, after it refused ours …
  std::atomic<unsigned> skew_from_{snapshots()};  // … since this snapshot of the process.
  std::atomic<std::uint64_t> calls_{0}, requests_{0}, retries_{0}, throttled_{0}, in_doubt_{0}, given_up_{0}, paced_{0},
      clock_corrections_{0}, damaged_{0}, false_times_{0};
};

SignedClient::SignedClient(ClientOptions options, ServiceTraits traits, std::shared_ptr<HttpClient> http)
    : core_(std::make_shared<Core>(std::move(options), std::move(traits), std::move(http))) {}
SignedClient::~SignedClient() { core_->stop(); }

void SignedClient::call(SignedCall call, Callback<void(SignedAnswer)> done) {
  const auto core = core_;  // The completion may destroy this client before start() returns.
  core->start(std::move(call), std::move(done));
}

ClientCounts SignedClient::counts() const noexcept { return core_->counts(); }

}  // namespace once::aws
