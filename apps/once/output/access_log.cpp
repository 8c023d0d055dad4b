#include "output/access_log.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <utility>

#include <once/error.hpp>

#include "output/report.hpp"
#include "output/text.hpp"
#include "text/rfc3339.hpp"

namespace once::cli {

namespace {

constexpr std::size_t most_waiting_bytes = std::size_t{4} * 1024 * 1024;

// With three decimals.
double milliseconds(std::chrono::nanoseconds span) {
  return std::round(static_cast<double>(span.count()) / 1'000.0) / 1'000.0;
}

}  // namespace

std::string access_line(const proxy::Served& served) {
  nlohmann::ordered_json json;
  json["time"] = text::rfc3339(served.at);
  json["level"] = to_string(LogLevel::info);
  json["client"] = served.client;
  json["method"] = served.method;
  json["path"] = served.path;
  if (!served.route.empty()) json["route"] = served.route;
  json["status"] = served.status;
  json["outcome"] = to_string(served.outcome);
  if (!served.fate.empty()) json["fate"] = served.fate;
  if (!served.cause.empty()) json["cause"] = served.cause;
  if (!served.stored_key.empty()) json["key_hash"] = key_hash(served.stored_key);
  if (!served.trace.empty()) json["trace_id"] = served.trace.trace_id_hex();
  if (!served.upstream.empty()) json["upstream"] = served.upstream;
  if (served.upstream_status != 0) json["upstream_status"] = served.upstream_status;
  json["request_bytes"] = served.request_body_bytes;
  json["answer_bytes"] = served.answer_body_bytes;
  json["duration_ms"] = milliseconds(served.took);
  if (served.upstream_took.count() != 0) json["upstream_ms"] = milliseconds(served.upstream_took);
  return log_line(json);
}

Fd AccessLog::open(const std::string& name) {
  if (name == "none") return {};
  Fd file(name == "-" ? fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0)
                      : ::open(name.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640));
  if (!file) {
    throw Exception(ErrorKind::unavailable,
                    "cannot write the access log " + name + ": " + std::system_category().message(errno));
  }
  return file;
}

AccessLog::AccessLog(const std::string& name) : on_(name != "none"), sink_(open(name)) {
  thread_ = std::jthread([this] { run(); });
}

AccessLog::~AccessLog() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  news_.notify_one();
  thread_.join();
}

void AccessLog::reopen(const std::string& name) {
  Fd sink = open(name);
  {
    const std::lock_guard lock(mutex_);
    on_ = static_cast<bool>(sink);
    next_ = std::move(sink);
  }
  news_.notify_one();
}

void AccessLog::write(const proxy::Served& served) {
  if (!on_) return;
  const std::string line = access_line(served);
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() + line.size() > most_waiting_bytes) {
      ++lost_;
      return;
    }
    waiting_ += line;
  }
  news_.notify_one();
}

void AccessLog::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    news_.wait(lock, [&] { return ending_ || next_ || !waiting_.empty(); });
    if (next_) {
      sink_ = *std::move(next_);
      next_.reset();
    }
    if (waiting_.empty()) {
      if (ending_) return;
      continue;
    }
    const int fd = sink_.get();
    std::string lines = std::exchange(waiting_, {});
    const std::uint64_t lost = std::exchange(lost_, 0);
    lock.unlock();
    if (lost != 0) {
      nlohmann::ordered_json json = log_head(LogLevel::warning, "lines_lost");
      json["lines"] = lost;
      lines += log_line(json);
    }
    static_cast<void>(write_all(fd, lines));  // An error cannot be reported.
    lock.lock();
  }
}

}  // namespace once::cli
