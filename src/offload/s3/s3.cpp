#include "offload/s3/s3.hpp"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <string_view>
#include <utility>

#include <once/error.hpp>
#include <once/fingerprint.hpp>

#include "aws/endpoint.hpp"
#include "aws/signer.hpp"

namespace once {

namespace {

using aws::HttpAnswer;
using aws::HttpRequest;

constexpr Millis first_pause{50};
constexpr Millis most_pause{5'000};
constexpr std::size_t max_hint_bytes = 100;
constexpr std::size_t max_prefix_bytes = 512;

constexpr bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }
constexpr bool is_lower(char c) noexcept { return c >= 'a' && c <= 'z'; }
constexpr bool is_upper(char c) noexcept { return c >= 'A' && c <= 'Z'; }

[[noreturn]] void refuse(const std::string& what) { throw Exception(ErrorKind::misuse, "S3 offload: " + what); }

void check_options(const S3Options& options) {
  const auto good = [](char c) { return is_lower(c) || is_digit(c) || c == '-' || c == '.'; };
  const std::string& bucket = options.bucket;
  if (bucket.size() < 3 || bucket.size() > 63 || !std::all_of(bucket.begin(), bucket.end(), good)) {
    refuse("'" + bucket + "' is no bucket's name: 3 to 63 lower case letters, digits, '-' and '.'");
  }
  constexpr std::string_view others = "/!-_.*'()=";
  const auto fits = [&](char c) {
    return is_lower(c) || is_upper(c) || is_digit(c) || others.find(c) != std::string_view::npos;
  };
  if (options.prefix.size() > max_prefix_bytes || !std::all_of(options.prefix.begin(), options.prefix.end(), fits)) {
    refuse("a prefix has at most 512 bytes: letters, digits and " + std::string(others));
  }
  if (options.timeout < Millis{1} || options.timeout > std::chrono::hours(1)) refuse("timeout must be 1 ms to 1 h");
  if (options.max_attempts < 1 || options.max_attempts > 100) refuse("max_attempts must be 1 to 100");
}

std::string base64(const Sha256& digest) {
  std::array<unsigned char, 4 * ((sizeof(Sha256) + 2) / 3) + 1> text{};
  const int length = EVP_EncodeBlock(text.data(), digest.data(), static_cast<int>(digest.size()));
  return {reinterpret_cast<const char*>(text.data()), static_cast<std::size_t>(length)};
}

// The text of an element in S3's error documents, such as <Code>; empty if there is none. They are flat.
std::string_view element(std::string_view body, std::string_view name) {
  const std::string open = "<" + std::string(name) + ">";
  const auto begin = body.find(open);
  if (begin == std::string_view::npos) return {};
  const std::string_view rest = body.substr(begin + open.size());
  const auto end = rest.find("</");
  return end == std::string_view::npos ? std::string_view() : rest.substr(0, end);
}

// "2026-05-17T12:34:56Z", as S3 gives its own time when it refuses ours.
std::optional<Time> time_of(std::string_view text) {
  if (text.size() < 20 || text[4] != '-' || text[7] != '-' || text[10] != 'T' || text[13] != ':' || text[16] != ':') {
    return std::nullopt;
  }
  bool good = true;
  const auto number = [&](std::size_t at, std::size_t digits) {
    int value = 0;
    const char* const last = text.data() + at + digits;
    good = std::from_chars(text.data() + at, last, value).ptr == last && good;
    return value;
  };
  const std::chrono::year_month_day date{std::chrono::year(number(0, 4)),
                                         std::chrono::month(static_cast<unsigned>(number(5, 2))),
                                         std::chrono::day(static_cast<unsigned>(number(8, 2)))};
  const auto time =
      std::chrono::hours(number(11, 2)) + std::chrono::minutes(number(14, 2)) + std::chrono::seconds(number(17, 2));
  if (!good || !date.ok()) return std::nullopt;
  return Time(std::chrono::sys_days(date)) + time;
}

enum class Verb { put, get, remove };

// One call, with all its requests.
struct Task {
  Verb verb{};
  std::string key;  // Of the object.
  std::string hint;
  HttpRequest request;
  Callback<void(OffloadAnswer)> done;
  std::shared_ptr<const aws::Credentials> credentials;  // Of the last request.
  unsigned tries = 0;
  bool new_clock = false;  // Each of these is repaired once.
  bool new_credentials = false;
};

class S3Offload final : public Offload, public std::enable_shared_from_this<S3Offload> {
 public:
  S3Offload(S3Options options, S3Ports ports)
      : options_(std::move(options)),
        ports_(std::move(ports)),
        region_(options_.region.empty() ? aws::find_region(options_.environment, options_.profile) : options_.region),
        endpoint_(options_.endpoint.empty() ? aws::find_endpoint("s3", region_, options_.environment, options_.profile)
                                            : aws::parse_endpoint(options_.endpoint, "the endpoint of the S3 offload")),
        prefix_(options_.prefix.empty() || options_.prefix.ends_with('/') ? options_.prefix : options_.prefix + "/"),
        place_("s3://" + options_.bucket + "/"),
        signer_("s3", region_) {
    aws::check_region(region_, "the S3 offload's region");
    const bool of_aws = endpoint_.host.ends_with(".amazonaws.com") || endpoint_.host.ends_with(".amazonaws.com.cn");
    const bool dotted = options_.bucket.find('.') != std::string::npos;
    if (options_.path_style.value_or(!of_aws || dotted)) {
      endpoint_.path += "/" + options_.bucket;
    } else {
      endpoint_.host = options_.bucket + "." + endpoint_.host;
    }
  }

  void put(std::string hint, std::string bytes, Callback<void(OffloadAnswer)> done) override {
    auto task = new_task(Verb::put, "PUT", std::move(done));
    task->hint = safe(hint);
    task->request.headers = {{"Content-Type", "application/octet-stream"},
                             {"x-amz-checksum-sha256", base64(sha256(bytes))}};
    task->request.body = std::move(bytes);
    name(*task);
    start(std::move(task));
  }

  void get(std::string location, Callback<void(OffloadAnswer)> done) override {
    start_at(std::move(location), new_task(Verb::get, "GET", std::move(done)));
  }

  void remove(std::string location, Callback<void(OffloadAnswer)> done) override {
    start_at(std::move(location), new_task(Verb::remove, "DELETE", std::move(done)));
  }

 private:
  using Shared = std::shared_ptr<Task>;

  Shared new_task(Verb verb, const char* method, Callback<void(OffloadAnswer)> done) const {
    auto task = std::make_shared<Task>();
    task->verb = verb;
    task->done = std::move(done);
    HttpRequest& request = task->request;
    request.method = method;
    request.tls = endpoint_.tls;
    request.host = endpoint_.host;
    request.port = endpoint_.port;
    request.timeout = options_.timeout;
    return task;
  }

  static std::string safe(std::string_view hint) {
    std::string out(hint.substr(0, max_hint_bytes));
    for (char& c : out) {
      if (!is_lower(c) && !is_upper(c) && !is_digit(c) && c != '.' && c != '-') c = '_';
    }
    return out;
  }

  // A new name, which nobody has used.
  void name(Task& task) const {
    std::array<std::uint8_t, 16> random{};
    ports_.random->fill(random);
    aim(task, prefix_ + task.hint + "-" + to_hex({reinterpret_cast<const char*>(random.data()), random.size()}));
  }

  void aim(Task& task, std::string key) const {
    task.key = std::move(key);
    task.request.target = endpoint_.path + "/" + aws::uri_encode(task.key, true);
  }

  // Only what lies where we put things: a location from a store that others can write must not lead elsewhere.
  void start_at(std::string location, Shared task) {
    if (!location.starts_with(place_ + prefix_) || location.size() == (place_ + prefix_).size()) {
      return task->done(
          {{},
           Error{ErrorKind::misuse, "the result lies at " + location + ", and the offload is s3://" + options_.bucket +
                                        "/" + prefix_ + ": open the offload that it was put into"}});
    }
    aim(*task, location.substr(place_.size()));
    start(std::move(task));
  }

  void start(Shared task) {
    ++task->tries;
    options_.credentials->get([self = shared_from_this(), task](aws::CredentialsAnswer answer) {
      if (answer.credentials == nullptr) return self->fail(*task, answer.error.kind, answer.error.message);
      task->credentials = std::move(answer.credentials);
      self->send(task);
    });
  }

  void send(const Shared& task) {
    HttpRequest request = task->request;  // A copy: this one may have to be sent again.
    if (task->verb == Verb::put && conditional_) request.headers.emplace_back("If-None-Match", "*");
    try {
      signer_.sign(request, *task->credentials, ports_.clock->now() + Millis(clock_offset_ms_));
    } catch (const Exception& error) {
      return fail(*task, error.kind(), error.what());
    }
    ports_.http->send(std::move(request), [self = shared_from_this(), task](HttpAnswer answer) {
      self->on_answer(task, std::move(answer));
    });
  }

  void on_answer(const Shared& task, HttpAnswer answer) {
    if (answer.error) {
      if (answer.error->kind == ErrorKind::misuse) return fail(*task, ErrorKind::misuse, answer.error->message);
      return again(task, answer.error->message);
    }
    const int status = answer.status;
    if (status == 200 || status == 204) {
      if (task->verb == Verb::put) return succeed(*task, place_ + task->key);
      return succeed(*task, task->verb == Verb::get ? std::move(answer.body) : std::string());
    }
    const std::string_view code = element(answer.body, "Code");
    if (repaired(task, status, code, answer)) return;
    if (status >= 500 || status == 409 || status == 429 || code == "RequestTimeout" || code == "BadDigest") {
      return again(task, said(status, answer.body));
    }
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
    // There may be new credentials any time.
    fail(*task, code == "ExpiredToken" ? ErrorKind::unavailable : ErrorKind::misuse,
         advice(*task, status, code, answer));
  }

  // Sends again at once, after what was wrong was put right. Each thing is repaired once, so this ends.
  bool repaired(const Shared& task, int status, std::string_view code, const HttpAnswer& answer) {
    if (task->verb == Verb::put && status == 412) {
      // An earlier request got there, though its answer did not get here. Otherwise somebody else has the name.
      if (task->tries > 1) return succeed(*task, place_ + task->key), true;
      name(*task);
      return start(task), true;
    }
    if (task->verb == Verb::put && status == 501 && conditional_.exchange(false)) {
      return start(task), true;  // A server that does not know If-None-Match. The names are random anyway.
    }
    if (code == "RequestTimeTooSkewed" && !task->new_clock) {
      const auto told = time_of(element(answer.body, "ServerTime"));
      if (!told) return false;
      task->new_clock = true;
      clock_offset_ms_ = (*told - ports_.clock->now()).count();
      return start(task), true;
    }
    if ((code == "ExpiredToken" || code == "InvalidAccessKeyId" || code == "InvalidToken") && !task->new_credentials) {
      task->new_credentials = true;
      options_.credentials->reject(*task->credentials);
      return start(task), true;
    }
    return false;
  }

  void again(const Shared& task, const std::string& why) {
    if (task->tries >= options_.max_attempts) {
      return fail(*task, ErrorKind::unavailable, "no success in " + std::to_string(task->tries) + " attempts: " + why);
    }
    // Full jitter: from nothing to the whole pause, which doubles.
    const Millis most = std::min<Millis>(first_pause * (std::int64_t{1} << std::min(task->tries - 1, 20U)), most_pause);
    std::array<std::uint8_t, 2> random{};
    ports_.random->fill(random);
    const Millis pause = most * (random[0] * 256 + random[1]) / 65'535;
    ports_.timers->at(ports_.clock->uptime() + pause, [self = shared_from_this(), task] { self->start(task); });
  }

  static std::string said(int status, std::string_view body) {
    std::string out = "S3 answered " + std::to_string(status);
    for (const char* name : {"Code", "Message"}) {
      const std::string_view text = element(body, name).substr(0, 200);
      if (!text.empty()) out += (name[0] == 'C' ? " " : ": ") + std::string(text);
    }
    return out;
  }

  std::string advice(const Task& task, int status, std::string_view code, const HttpAnswer& answer) const {
    const std::string what = said(status, answer.body);
    const std::string_view region = answer.header("x-amz-bucket-region");
    if (code == "NoSuchBucket") return what + ": there is no bucket " + options_.bucket;
    if (status == 301 || status == 307 || code == "AuthorizationHeaderMalformed") {
      return what + ": the bucket " + options_.bucket + " is not in the region " + region_ +
             (region.empty() ? std::string() : ": use region=" + std::string(region));
    }
    if (status == 401 || status == 403) {
      return what + ": the credentials (from " + task.credentials->source + ") may not use " + place_ + task.key +
             (task.verb == Verb::get ? ", or it is missing and they may not list the bucket" : "");
    }
    return what;
  }

  void fail(Task& task, ErrorKind kind, const std::string& why) const {
    const char* const verb = task.verb == Verb::put ? "write" : task.verb == Verb::get ? "read" : "remove";
    task.done({{}, Error{kind, "cannot " + std::string(verb) + " " + place_ + task.key + ": " + why}});
  }
  static void succeed(Task& task, std::string text) { task.done({std::move(text), {}}); }

  const S3Options options_;
  const S3Ports ports_;
  const std::string region_;
  aws::Endpoint endpoint_;  // With the bucket in it.
  const std::string prefix_;
  const std::string place_;  // What locations begin with.
  aws::Signer signer_;
  std::atomic<bool> conditional_ = true;
  std::atomic<std::int64_t> clock_offset_ms_ = 0;  // What the service's clock is ahead of this host's.
};

}  // namespace

std::shared_ptr<Offload> make_s3_offload(S3Options options, S3Ports ports) {
  check_options(options);
  return std::make_shared<S3Offload>(std::move(options), std::move(ports));
}

}  // namespace once
