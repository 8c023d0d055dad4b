#include "output/report.hpp"

#include <pwd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>

#include <once/operate.hpp>
#include <once/platform/system.hpp>

#include "operators/run_result.hpp"
#include "output/text.hpp"
#include "platform/file.hpp"
#include "text/rfc3339.hpp"

namespace once::cli {

namespace {

using Json = nlohmann::ordered_json;

std::atomic<LogFormat> said_as{LogFormat::text};

void add_line(std::string& out, std::string_view name, std::string_view value) {
  out += name;
  out.append(name.size() < 13 ? 13 - name.size() : 1, ' ');
  out += value;
  out += '\n';
}

std::string when(Time time, Time now) {
  return time == never || time == Time{} ? relative(time, now)
                                         : text::rfc3339(time) + "  (" + relative(time, now) + ")";
}

std::string indented(std::string_view bytes) {
  constexpr std::size_t most_shown = 2000;
  const std::string_view shown = bytes.substr(0, most_shown);
  std::string out;
  std::size_t at = 0;
  while (at < shown.size()) {
    const auto end = shown.find('\n', at);
    const auto line = shown.substr(at, end == std::string_view::npos ? end : end - at);
    out += "  | " + escaped(line) + "\n";
    at = end == std::string_view::npos ? shown.size() : end + 1;
  }
  if (shown.size() < bytes.size()) out += "  (" + show_size(bytes.size()) + " in all; --json shows them)\n";
  return out;
}

std::string input_text(const Record& record) {
  std::string out;
  const std::string all = show_size(record.input_bytes);
  if (is_sealed(record)) {
    add_line(out, "input", all + ", sealed");
    return out;
  }
  const bool is_cut = record.input.size() < record.input_bytes;
  add_line(out, "input", is_cut ? "the first " + show_size(record.input.size()) + " of " + all : all);
  return out + indented(record.input);
}

std::string result_text(const Result& result) {
  std::string out;
  if (result.placement == Placement::sealed) {
    add_line(out, "result", show_size(result.size) + ", sealed");
    return out;
  }
  if (result.placement == Placement::dropped) {
    add_line(out, "result", "not kept: " + show_size(result.size) + ", too large for the store or for the room it had");
    return out;
  }
  if (result.placement == Placement::compressed) {
    add_line(out, "result", show_size(result.size) + ", kept compressed");
  }
  if (result.placement == Placement::offloaded) {
    add_line(out, "result", show_size(result.size) + " at " + escaped(result.location));
  }
  if (result.bytes.empty()) return out;
  std::optional<RunResult> run;
  try {
    run = run_result_of(result);
  } catch (const Exception& error) {
    add_line(out, "result", error.what());
    return out;
  }
  if (!run) {
    if (result.placement == Placement::inlined) add_line(out, "result", show_size(result.bytes.size()));
    return out + indented(result.bytes);
  }
  add_line(out, "exit code",
           std::to_string(run->end.exit_code()) +
               (run->end.signaled ? " (signal " + std::to_string(run->end.code) + ")" : std::string()));
  const std::string kept = run->dropped ? ", too much to keep" : "";
  add_line(out, "stdout", show_size(run->output_bytes) + kept);
  out += indented(run->of(Stream::output));
  add_line(out, "stderr", show_size(run->error_bytes) + kept);
  out += indented(run->of(Stream::error));
  return out;
}

}  // namespace

void say_as(LogFormat format) noexcept {
  static_cast<void>(system_clock());  // Made now, and not in a signal's handler.
  said_as = format;
}

Json log_head(LogLevel level, std::string_view event) {
  return {{"time", text::rfc3339(system_clock()->now())}, {"level", to_string(level)}, {"event", event}};
}

std::string log_line(const Json& line) { return json_line(line) + "\n"; }

void say(std::string_view text, LogLevel level) {
  std::string line;
  if (said_as == LogFormat::json) {
    Json json = log_head(level, "note");
    json["why"] = text;
    line = log_line(json);
  } else {
    line = "once: " + std::string(text) + "\n";
  }
  // One write for each line, because several threads write to standard error.
  [[maybe_unused]] const bool written = write_all(STDERR_FILENO, line);
}

void say_at_the_end(std::string_view text) noexcept {
  constexpr std::string_view head = R"({"time":")";
  constexpr std::string_view middle = R"(","level":"err","event":"note","why":")";
  const bool json = said_as == LogFormat::json;
  const text::Rfc3339 time = text::rfc3339_chars(system_clock()->now());
  std::array<iovec, 5> parts{};
  std::size_t count = 0;
  const auto add = [&](std::string_view part) {
    parts.at(count++) = {.iov_base = const_cast<char*>(part.data()), .iov_len = part.size()};
  };
  if (json) add(head);
  if (json) add({time.data(), time.size()});
  add(json ? middle : "once: ");
  add(text);
  add(json ? "\"}\n" : "\n");
  static_cast<void>(writev(STDERR_FILENO, parts.data(), static_cast<int>(count)) < 0);
}

ExitCode exit_code_of(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::unavailable:
    case ErrorKind::in_doubt:
      return exit_unavailable;
    case ErrorKind::corrupt:
      return exit_corrupt;
    case ErrorKind::misuse:
      return exit_usage;
  }
  return exit_internal;
}

ExitCode exit_code_of_store(ErrorKind kind) noexcept {
  return kind == ErrorKind::misuse ? exit_unavailable : exit_code_of(kind);
}

int fail_with(const Error& error) {
  say(error.message, LogLevel::err);
  return exit_code_of(error.kind);
}

int print(std::string_view text, int exit_code) {
  if (write_all(STDOUT_FILENO, text) || errno == EPIPE) return exit_code;
  say(std::string("cannot write to standard output: ") + std::strerror(errno), LogLevel::err);
  return exit_output;
}

static std::string trace_text(const TraceParent& trace) {
  return trace.trace_id_hex() + "  (span " + trace.span_id_hex() + ")";
}

// "attempt 2 of web-1:71 lapsed after 31s: 3 of 10 files", "released by alice@desk: checked".
static std::string history_line(const HistoryEntry& entry) {
  const std::string why = entry.why.empty() ? "" : ": " + escaped(entry.why);
  if (entry.attempt == 0) return escaped(entry.what) + " by " + escaped(entry.who) + why;
  const bool is_known = entry.began_at != Time{} && entry.began_at <= entry.at;
  return "attempt " + std::to_string(entry.attempt) + (entry.who.empty() ? "" : " of " + escaped(entry.who)) + " " +
         escaped(entry.what) + (is_known ? " after " + show_duration(entry.at - entry.began_at) : "") + why +
         (entry.trace.empty() ? "" : "  trace " + trace_text(entry.trace));
}

std::optional<int> run_exit_code(const Record& record) {
  if (!has_result(record) || record.result.placement != Placement::inlined) return std::nullopt;
  try {
    const std::optional<RunResult> run = run_result_of(record.result);
    return run ? std::optional(run->end.exit_code()) : std::nullopt;
  } catch (const Exception&) {  // `once show` says why it cannot be decoded.
    return std::nullopt;
  }
}

std::string record_text(const Record& record, Time now) {
  const KeyParts parts = key_parts(record.key);
  const operate::Standing standing = operate::standing(record, now);
  std::string out;
  add_line(out, "key", escaped(parts.name));
  if (!parts.scope.empty()) add_line(out, "scope", escaped(parts.scope));
  add_line(out, "key hash", key_hash(record.key));
  add_line(out, "state",
           std::string(to_string(record.state)) + (operate::to_string(standing) == to_string(record.state)
                                                       ? std::string()
                                                       : " (" + std::string(operate::to_string(standing)) + ")"));
  add_line(out, "attempt", std::to_string(record.attempt));
  add_line(out, "token", std::to_string(record.token));
  add_line(out, "owner", record.owner.hex());
  add_line(out, "revision", std::to_string(record.revision));
  add_line(out, "holder", escaped(record.holder));
  if (!record.note.empty()) add_line(out, "note", escaped(record.note));
  if (!record.label.empty()) add_line(out, "label", escaped(record.label));
  if (!record.history.trace.empty()) add_line(out, "trace", trace_text(record.history.trace));
  add_line(out, "created", when(record.created_at, now));
  if (record.lease_until != Time{}) add_line(out, "lease until", when(record.lease_until, now));
  if (record.state == State::in_progress) add_line(out, "on lapse", std::string(to_string(record.on_lapse)));
  if (record.expected_until != Time{}) {
    add_line(out, "expected until", when(record.expected_until, now) + (is_overdue(record, now) ? ": overdue" : ""));
  }
  if (record.finished_at != Time{}) add_line(out, "finished", when(record.finished_at, now));
  add_line(out, "expires", when(record.expires_at, now));
  if (is_sealed(record)) {
    add_line(out, "sealed", "with a key that is not given here: add seal=FILE to the store's URL");
  } else {
    add_line(out, "fingerprint", record.fingerprint.empty() ? "not checked" : record.fingerprint.hex());
  }
  for (const Step& step : record.steps) {
    add_line(out, "step", escaped(step.name) + "  (" + show_size(step.result.size()) + ")");
  }
  if (record.history.dropped != 0) {
    add_line(out, "history", std::to_string(record.history.dropped) + " older entries are not kept");
  }
  for (const HistoryEntry& entry : record.history.entries) {
    add_line(out, "history", when(entry.at, now) + "  " + history_line(entry));
  }
  if (record.input_bytes != 0) out += input_text(record);
  if (!(record.failure == Failure{})) {
    add_line(out, "failure", escaped(record.failure.code) + ": " + escaped(record.failure.message));
  }
  if (has_result(record)) out += result_text(record.result);
  return out;
}

std::string relative(Time time, Time now) {
  if (time == never) return "never";
  if (time == Time{}) return "unknown";
  return time >= now ? "in " + show_duration(time - now) : show_duration(now - time) + " ago";
}

std::string who() {
  // Looked up once: getpwuid() must not be called by two threads at a time.
  static const std::string name = [] {
    std::array<char, 256> host{};
    if (gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
    const passwd* const user = getpwuid(getuid());
    return (user != nullptr ? std::string(user->pw_name) : "uid " + std::to_string(getuid())) + "@" +
           (host[0] != '\0' ? host.data() : "localhost");
  }();
  return name;
}

}  // namespace once::cli
