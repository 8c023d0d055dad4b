#include <once/engine/log.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <climits>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include <once/key.hpp>
#include <once/platform/system.hpp>

#include "platform/line_sink.hpp"
#include "text/hex.hpp"
#include "text/rfc3339.hpp"
#include "text/utf8.hpp"

namespace once {

namespace {

static_assert(LogObserver::max_line_bytes <= PIPE_BUF, "a longer write to a pipe is not atomic");

constexpr std::chrono::seconds store_error_pause{30};

// The most bytes of each text in a line, escaped. All of them together leave room for the rest of the line.
constexpr std::size_t most_scope = 400;
constexpr std::size_t most_key = 600;
constexpr std::size_t most_holder = 600;
constexpr std::size_t most_why = 1200;
constexpr std::size_t most_code = 400;

// Inside the quotes of a JSON string. Invalid UTF-8 becomes U+FFFD.
void append_escaped(std::string& out, std::string_view bytes, std::size_t most) {
  // Nearly every text: nothing to escape, nothing to cut.
  if (bytes.size() <= most &&
      std::ranges::none_of(bytes, [](char c) { return c < ' ' || c > '~' || c == '"' || c == '\\'; })) {
    out += bytes;
    return;
  }
  const std::string text = text::replace_invalid_utf8(bytes.substr(0, most + 4));
  const std::size_t end = out.size() + most;
  const char* p = text.data();
  while (p < text.data() + text.size()) {
    const char* const begin = p;
    const char32_t c = text::next_code_point(p);
    std::string shown(begin, p);
    if (c == '"' || c == '\\') {
      shown.insert(0, 1, '\\');
    } else if (text::is_invisible(c)) {
      shown.clear();
      text::append_json_escape(c, shown);
    }
    if (out.size() + shown.size() > end) {
      out += "…";
      return;
    }
    out += shown;
  }
}

// Needs no quotes in a line of text.
bool is_plain(std::string_view text) noexcept {
  for (const char c : text) {
    if (c <= ' ' || c > '~' || c == '"' || c == '\\' || c == '=') return false;
  }
  return !text.empty();
}

class Line {
 public:
  Line(LogFormat format, Time time, LogLevel level, std::string_view event) : json_(format == LogFormat::json) {
    constexpr std::size_t usual = 512;
    out_.reserve(usual);
    if (json_) {
      out_ += '{';
      add_text("time", text::rfc3339(time));
      add_text("level", to_string(level));
      add_text("event", event);
    } else {
      out_.append(text::rfc3339(time)).append(" ").append(to_string(level)).append(" ").append(event);
    }
  }

  void add_text(std::string_view name, std::string_view text, std::size_t most = 64) {
    if (text.empty()) return;
    begin(name);
    const bool quotes = json_ || text.size() > most || !is_plain(text);
    if (quotes) out_ += '"';
    append_escaped(out_, text, most);
    if (quotes) out_ += '"';
  }

  template <class Number>
  void add_number(std::string_view name, Number number) {
    begin(name);
    std::array<char, 32> digits{};
    out_.append(digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr);
  }

  void add_milliseconds(std::string_view name, std::chrono::nanoseconds span) {
    begin(name);
    const auto us = static_cast<std::uint64_t>(std::max<std::int64_t>(span.count(), 0)) / 1'000;
    const std::string fraction = std::to_string(1'000 + us % 1'000);
    out_.append(std::to_string(us / 1'000)).append(".").append(fraction, 1);
  }

  std::string take() && {
    out_ += json_ ? "}\n" : "\n";
    return std::move(out_);
  }

 private:
  void begin(std::string_view name) {
    if (json_) {
      out_.append(out_.size() == 1 ? "\"" : ",\"").append(name).append("\":");
    } else {
      out_.append(" ").append(name).append("=");
    }
  }

  const bool json_;
  std::string out_;
};

// A digest as deriving a key makes it, or a message's id: it tells nothing, and finds the record.
bool is_digest(std::string_view name) noexcept {
  constexpr std::size_t least_digits = 32;
  if (name.size() < least_digits) return false;
  for (const char c : name) {
    if (c != '-' && text::lower_digits.find(c) == std::string_view::npos) return false;
  }
  return true;
}

void add_key(Line& line, const Event& event) {
  if (event.key.empty()) return;
  const std::size_t mark = event.key.find('#');
  if (mark != std::string_view::npos && mark + 1 < event.key.size()) {
    line.add_text("scope", Key::from_stored(event.key).scope(), most_scope);
  }
  const std::string_view name = event.key.substr(event.key.rfind('#') + 1);
  if (event.record != nullptr && !event.record->label.empty()) {
    line.add_text("key", event.record->label, most_key);
  } else if (is_digest(name)) {
    line.add_text("key", name, most_key);
  }
  line.add_text("key_hash", key_hash(event.key));
}

bool is_reconciling(EventKind kind) noexcept {
  return kind == EventKind::reconciled || kind == EventKind::reconcile_later || kind == EventKind::reconcile_gave_up;
}

// Whether `took` says something about the event.
bool has_duration(EventKind kind) noexcept {
  return kind != EventKind::store_error && kind != EventKind::unprotected && kind != EventKind::abandoned &&
         !is_reconciling(kind);
}

// What stands in the record about how it ended.
bool shows_failure(const Event& event) noexcept {
  return event.error == nullptr && event.record != nullptr && event.record->state != State::completed &&
         !is_reconciling(event.kind);
}

}  // namespace

std::string_view to_string(LogLevel level) noexcept {
  switch (level) {
    case LogLevel::err:
      return "err";
    case LogLevel::warning:
      return "warning";
    case LogLevel::notice:
      return "notice";
    case LogLevel::info:
      return "info";
    case LogLevel::debug:
      return "debug";
  }
  return "?";
}

std::optional<LogLevel> log_level_from_string(std::string_view name) {
  for (const LogLevel level : {LogLevel::err, LogLevel::warning, LogLevel::notice, LogLevel::info, LogLevel::debug}) {
    if (name == to_string(level)) return level;
  }
  return std::nullopt;
}

LogLevel level_of(EventKind kind) noexcept {
  switch (kind) {
    case EventKind::finish_refused:
    case EventKind::store_error:
      return LogLevel::err;
    case EventKind::mismatch:
    case EventKind::unknown:
    case EventKind::renewal_lost:
    case EventKind::held:
    case EventKind::abandoned:
    case EventKind::unrecorded:
    case EventKind::unprotected:
    case EventKind::reconcile_gave_up:
      return LogLevel::warning;
    case EventKind::took_over:
    case EventKind::failed:
    case EventKind::declined:
    case EventKind::reconciled:
      return LogLevel::notice;
    case EventKind::claimed:
    case EventKind::resumed:
    case EventKind::replayed:
    case EventKind::conflict:
    case EventKind::work_done:
    case EventKind::completed:
    case EventKind::released:
    case EventKind::reconcile_later:
      return LogLevel::info;
    case EventKind::step_recorded:
    case EventKind::renewed:
      return LogLevel::debug;
  }
  return LogLevel::err;
}

class LogObserver::Log {
 public:
  explicit Log(LogOptions options)
      : options_(std::move(options)),
        clock_(options_.clock != nullptr ? options_.clock : system_clock()),
        sink_(options_.descriptor) {}

  void observe(const Event& event) {
    const LogLevel level = level_of(event.kind);
    if (level > options_.level) return;
    std::uint64_t left_out = 0;
    if (event.kind == EventKind::store_error && !takes_store_error(left_out)) return;
    Line line(options_.format, clock_->now(), level, to_string(event.kind));
    add_key(line, event);
    if (const Record* const record = event.record; record != nullptr) {
      line.add_number("attempt", record->attempt);
      line.add_number("token", record->token);
      line.add_text("holder", record->holder, most_holder);
    }
    if (event.trace != nullptr) {
      line.add_text("trace_id", event.trace->call.trace_id_hex());
      line.add_text("span_id", event.trace->call.span_id_hex());
    }
    if (has_duration(event.kind)) line.add_milliseconds("took_ms", event.took);
    if (event.error != nullptr) {
      line.add_text("error", to_string(event.error->kind));
      line.add_text("why", event.error->message, most_why);
    }
    if (shows_failure(event)) {
      line.add_text("failure", event.record->failure.code, most_code);
      line.add_text("why", event.record->failure.message, most_why);
    }
    const bool tells_note = event.kind == EventKind::released || event.kind == EventKind::reconciled ||
                            event.kind == EventKind::reconcile_gave_up;
    if (tells_note && event.record != nullptr) line.add_text("why", event.record->note, most_why);
    if (left_out != 0) line.add_number("left_out", left_out);
    write(std::move(line).take());
  }

  void lose() noexcept {
    ++lost_;
    ++untold_;
  }
  [[nodiscard]] std::uint64_t lost() const noexcept { return lost_; }

 private:
  void write(std::string_view text) {
    const std::uint64_t untold = untold_.exchange(0);
    if (untold != 0) {
      Line line(options_.format, clock_->now(), LogLevel::warning, "lines_lost");
      line.add_number("lines", untold);
      if (!sink_.write(std::move(line).take())) {
        untold_ += untold;
        return lose();
      }
    }
    if (!sink_.write(text)) lose();
  }

  bool takes_store_error(std::uint64_t& left_out) {
    const Uptime now = clock_->uptime();
    const std::lock_guard lock(mutex_);
    if (store_error_at_ && now - *store_error_at_ < store_error_pause) {
      ++left_out_;
      return false;
    }
    store_error_at_ = now;
    left_out = std::exchange(left_out_, 0);
    return true;
  }

  const LogOptions options_;
  const std::shared_ptr<const Clock> clock_;
  LineSink sink_;
  std::atomic<std::uint64_t> lost_{0};
  std::atomic<std::uint64_t> untold_{0};  // Of these, not yet counted in a line.
  std::mutex mutex_;                      // Of what follows.
  std::optional<Uptime> store_error_at_;  // The last line about one.
  std::uint64_t left_out_ = 0;            // Since then.
};

LogObserver::LogObserver(LogOptions options) : log_(std::make_shared<Log>(std::move(options))) {}

void LogObserver::operator()(const Event& event) const noexcept {
  try {
    log_->observe(event);
  } catch (...) {  // Out of memory: an observer must not throw.
    log_->lose();
  }
}

std::uint64_t LogObserver::lines_lost() const noexcept { return log_->lost(); }

}  // namespace once
