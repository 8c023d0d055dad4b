#include "offload/s3/s3.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>

#include <once/error.hpp>
#include <once/fingerprint.hpp>

#include "aws/endpoint.hpp"
#include "aws/service_error.hpp"
#include "aws/signed_client.hpp"
#include "text/ascii.hpp"
#include "text/base64.hpp"
#include "text/percent.hpp"
#include "text/rfc3339.hpp"

namespace once {

namespace {

using aws::HttpAnswer;

constexpr Millis no_limit = std::chrono::years(1);
constexpr std::size_t max_hint_bytes = 100;
constexpr std::size_t max_prefix_bytes = 512;

[[noreturn]] void refuse(const std::string& what) { throw Exception(ErrorKind::misuse, "S3 offload: " + what); }

void check_options(const S3Options& options) {
  const auto good = [](char c) { return (c >= 'a' && c <= 'z') || text::is_digit(c) || c == '-' || c == '.'; };
  const std::string& bucket = options.bucket;
  if (bucket.size() < 3 || bucket.size() > 63 || !std::all_of(bucket.begin(), bucket.end(), good)) {
    refuse("'" + bucket + "' is not a bucket's name: 3 to 63 lower-case letters, digits, '-' and '.'");
  }
  constexpr std::string_view others = "/!-_.*'()=";
  const auto fits = [&](char c) { return text::is_letter_or_digit(c) || others.find(c) != std::string_view::npos; };
  if (options.prefix.size() > max_prefix_bytes || !std::all_of(options.prefix.begin(), options.prefix.end(), fits)) {
    refuse("a prefix must have at most 512 bytes: letters, digits and " + std::string(others));
  }
  if (options.timeout < Millis{1} || options.timeout > std::chrono::hours(1)) refuse("timeout must be 1 ms to 1 h");
  if (options.max_attempts < 1 || options.max_attempts > 100) refuse("max_attempts must be 1 to 100");
}

std::string said(int status, std::string_view body) {
  std::string out = "S3 answered " + std::to_string(status);
  for (const char* name : {"Code", "Message"}) {
    const std::string text = aws::xml_text(body, name).substr(0, 200);
    if (!text.empty()) out += (name[0] == 'C' ? " " : ": ") + text;
  }
  return out;
}

aws::Refusal read_refusal(const HttpAnswer& answer) {
  const std::string code = aws::xml_text(answer.body, "Code");
  const int status = answer.status;
  aws::Refusal refusal{.remedy = aws::remedy_for(code, status), .said = said(status, answer.body), .time = {}};
  // A pause is enough: other calls need not wait.
  if (refusal.remedy == aws::Remedy::slow_down || status == 409 || code == "RequestTimeout" || code == "BadDigest") {
    refusal.remedy = aws::Remedy::again;
  }
  if (status == 501) refusal.remedy = aws::Remedy::none;  // A server that does not know If-None-Match.
  if (refusal.remedy == aws::Remedy::clock) refusal.time = text::from_rfc3339(aws::xml_text(answer.body, "ServerTime"));
  return refusal;
}

enum class Verb { put, get, remove };

struct Task {
  Verb verb{};
  std::string key;  // Of the object.
  std::string hint;
  bool renamed = false;
  Callback<void(OffloadAnswer)> done;
};

class S3Offload final : public Offload, public std::enable_shared_from_this<S3Offload> {
 public:
  S3Offload(S3Options options, S3Ports ports, std::string region, aws::Endpoint endpoint)
      : bucket_(std::move(options.bucket)),
        region_(std::move(region)),
        prefix_(options.prefix.empty() || options.prefix.ends_with('/') ? options.prefix : options.prefix + "/"),
        place_("s3://" + bucket_ + "/"),
        path_(endpoint.path + "/"),
        max_attempts_(options.max_attempts),
        random_(ports.random),
        client_({.service = "s3",
                 .region = region_,
                 .credentials = std::move(options.credentials),
                 .timeout = options.timeout,
                 .total_timeout = no_limit,
                 .max_attempts = max_attempts_,
                 .backoff = Millis{50},
                 .max_backoff = Millis{5'000},
                 .retry_budget = std::numeric_limits<std::uint32_t>::max(),
                 .clock = std::move(ports.clock),
                 .timers = std::move(ports.timers),
                 .random = std::move(ports.random)},
                {.endpoint = std::move(endpoint), .read_refusal = read_refusal, .tells_doubt = false},
                std::move(ports.http)) {}

  void put(std::string hint, std::string bytes, Callback<void(OffloadAnswer)> done) override {
    auto task = new_task(Verb::put, std::move(done));
    task->hint = safe(hint);
    name(*task);
    aws::SignedCall call{.method = "PUT",
                         .headers = {{"Content-Type", "application/octet-stream"},
                                     {"x-amz-checksum-sha256", text::encode_base64(Fingerprint::of(bytes).bytes())}}};
    if (conditional_) call.headers.emplace_back(if_none_match, "*");
    call.body = std::move(bytes);
    start(std::move(task), std::move(call));
  }

  void get(std::string location, Callback<void(OffloadAnswer)> done) override {
    start_at(location, new_task(Verb::get, std::move(done)), {.method = "GET"});
  }

  void remove(std::string location, Callback<void(OffloadAnswer)> done) override {
    start_at(location, new_task(Verb::remove, std::move(done)), {.method = "DELETE"});
  }

 private:
  using Shared = std::shared_ptr<Task>;

  static constexpr const char* if_none_match = "If-None-Match";

  static Shared new_task(Verb verb, Callback<void(OffloadAnswer)> done) {
    auto task = std::make_shared<Task>();
    task->verb = verb;
    task->done = std::move(done);
    return task;
  }

  static std::string safe(std::string_view hint) {
    std::string out(hint.substr(0, max_hint_bytes));
    for (char& c : out) {
      if (!text::is_letter_or_digit(c) && c != '.' && c != '-') c = '_';
    }
    return out;
  }

  // A new, unused name.
  void name(Task& task) const {
    std::array<std::uint8_t, 16> random{};
    random_->fill(random);
    task.key = prefix_ + task.hint + "-" + to_hex({reinterpret_cast<const char*>(random.data()), random.size()});
  }

  // Only below our prefix: others may write the store, and a location must not lead elsewhere.
  void start_at(const std::string& location, Shared task, aws::SignedCall call) {
    if (!location.starts_with(place_ + prefix_) || location.size() == (place_ + prefix_).size()) {
      return task->done({{},
                         Error{ErrorKind::misuse, "the result is at " + location + ", but the offload is " + place_ +
                                                      prefix_ + ": open the offload that holds it"}});
    }
    task->key = location.substr(place_.size());
    start(std::move(task), std::move(call));
  }

  void start(Shared task, aws::SignedCall call) {
    call.target = path_ + text::percent_encoded(task->key, [](char c) { return text::is_unreserved(c) || c == '/'; });
    client_.call(std::move(call),
                 [self = shared_from_this(), task = std::move(task)](aws::SignedAnswer answer) mutable {
                   self->on_answer(std::move(task), std::move(answer));
                 });
  }

  void on_answer(Shared task, aws::SignedAnswer answer) {
    const int status = answer.http.status;
    const std::string code = aws::xml_text(answer.http.body, "Code");
    if (const auto& error = answer.http.error) {
      if (answer.refused) return fail(*task, error->kind, advice(*task, answer, code));
      const bool gave_up = error->kind == ErrorKind::unavailable && answer.attempts >= max_attempts_;
      return fail(*task, error->kind,
                  (gave_up ? "no success in " + std::to_string(answer.attempts) + " attempts: " : "") + error->message);
    }
    if (status == 200 || status == 204) {
      if (task->verb == Verb::put) return succeed(*task, place_ + task->key);
      return succeed(*task, task->verb == Verb::get ? std::move(answer.http.body) : std::string());
    }
    if (task->verb == Verb::put && (status == 412 || status == 501)) return refused_condition(task, std::move(answer));
    if (status == 404 && code != "NoSuchBucket") {
      if (task->verb == Verb::remove) return succeed(*task, {});
      if (task->verb == Verb::get) {
        return task->done(
            {{},
             Error{ErrorKind::corrupt, "the object " + place_ + task->key +
                                           " is missing: was it removed, or did a lifecycle rule expire it before the "
                                           "record?"}});
      }
    }
    fail(*task, ErrorKind::misuse, advice(*task, answer, code));
  }

  // A PUT with If-None-Match was refused: retry if that can help.
  void refused_condition(const Shared& task, aws::SignedAnswer answer) {
    aws::SignedCall& call = answer.call;
    const bool first = answer.attempts == call.attempts_made + 1;
    bool again = false;
    if (answer.http.status == 501) {  // The server does not know If-None-Match. The names are random anyway.
      conditional_ = false;
      again = std::erase_if(call.headers, [](const auto& header) { return header.first == if_none_match; }) > 0;
    } else if (!first) {  // An earlier request succeeded, but its answer was lost.
      return succeed(*task, place_ + task->key);
    } else if (!task->renamed) {  // Another object has the name.
      name(*task);
      again = task->renamed = true;
    }
    if (!again) return fail(*task, ErrorKind::misuse, said(answer.http.status, answer.http.body));
    call.attempts_made = answer.attempts;
    start(task, std::move(call));
  }

  std::string advice(const Task& task, const aws::SignedAnswer& answer, std::string_view code) const {
    const int status = answer.http.status;
    const std::string what = said(status, answer.http.body);
    const std::string_view region = answer.http.header("x-amz-bucket-region");
    if (code == "NoSuchBucket") return what + ": there is no bucket " + bucket_;
    if (status == 301 || status == 307 || code == "AuthorizationHeaderMalformed") {
      return what + ": the bucket " + bucket_ + " is not in the region " + region_ +
             (region.empty() ? std::string() : ": use region=" + std::string(region));
    }
    if (status == 401 || status == 403) {
      return what + ": the credentials (from " + answer.credentials->source + ") may not use " + place_ + task.key +
             (task.verb == Verb::get ? ", or it is missing and they may not list the bucket" : "");
    }
    return what;
  }

  void fail(Task& task, ErrorKind kind, const std::string& why) const {
    const char* const verb = task.verb == Verb::put ? "write" : task.verb == Verb::get ? "read" : "remove";
    task.done({{}, Error{kind, "cannot " + std::string(verb) + " " + place_ + task.key + ": " + why}});
  }
  static void succeed(Task& task, std::string text) { task.done({std::move(text), {}}); }

  const std::string bucket_;
  const std::string region_;
  const std::string prefix_;
  const std::string place_;  // The prefix of locations.
  const std::string path_;   // The prefix of request targets.
  const std::uint32_t max_attempts_;
  const std::shared_ptr<Random> random_;
  std::atomic<bool> conditional_ = true;
  aws::SignedClient client_;
};

}  // namespace

std::shared_ptr<Offload> make_s3_offload(S3Options options, S3Ports ports) {
  check_options(options);
  std::string region = options.region.empty() ? aws::find_region(options.environment, options.profile) : options.region;
  aws::Endpoint endpoint = aws::find_endpoint("s3", region, options.environment, options.profile,
                                              {options.endpoint, "the endpoint of the S3 offload"});
  aws::check_region(region, "the S3 offload's region");
  const bool dotted = options.bucket.find('.') != std::string::npos;
  if (options.path_style.value_or(!aws::is_of_aws(endpoint.host) || dotted)) {
    endpoint.path += "/" + options.bucket;
  } else {
    endpoint.host = options.bucket + "." + endpoint.host;
  }
  return std::make_shared<S3Offload>(std::move(options), std::move(ports), std::move(region), std::move(endpoint));
}

}  // namespace once
