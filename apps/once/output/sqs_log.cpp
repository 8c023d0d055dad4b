#include "output/sqs_log.hpp"

#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>

#include "output/report.hpp"
#include "output/text.hpp"
#include "platform/file.hpp"
#include "queues/message.hpp"

namespace once::cli {

namespace {

bool is_good(const sqs::PollEvent& event) {
  return event.deleted && !event.parked && event.end != queues::RecordEnd::stored_failure;
}

LogLevel level_of(const sqs::PollEvent& event) {
  using Kind = sqs::PollEvent::Kind;
  const bool usual = event.kind == Kind::given_back || (event.kind == Kind::ended && is_good(event));
  return usual ? LogLevel::info : LogLevel::warning;
}

void write_json(const sqs::PollEvent& event) {
  nlohmann::ordered_json line = log_head(level_of(event), to_string(event.kind));
  if (event.kind == sqs::PollEvent::Kind::pause) {
    line["pause_ms"] = event.pause.count();
  } else if (event.kind != sqs::PollEvent::Kind::abandoned) {
    line["message_id"] = event.id;
    if (!event.key.empty()) {
      const KeyParts key = key_parts(event.key);
      line["scope"] = key.scope;
      line["key"] = key.name;
    }
    line["receive_count"] = event.receive_count;
  }
  if (event.kind == sqs::PollEvent::Kind::ended) {
    line["end"] = to_string(event.end);
    line["deleted"] = event.deleted;
    line["parked"] = event.parked;
  }
  if (!event.why.empty()) line["why"] = event.why;
  // One write for each line, because several threads write to standard error.
  [[maybe_unused]] const bool written = write_all(STDERR_FILENO, log_line(line));
}

}  // namespace

SqsLog::SqsLog(const std::optional<LogOptions>& options, bool verbose, Millis visibility)
    : on_(options.has_value()),
      json_(on_ && options->format == LogFormat::json),
      level_(on_ ? options->level : LogLevel::err),
      verbose_(verbose),
      visibility_(visibility) {}

void SqsLog::operator()(const sqs::PollEvent& event) const {
  if (!on_ || level_of(event) > level_) return;
  if (json_) return write_json(event);
  using Kind = sqs::PollEvent::Kind;
  const std::string message = "message " + escaped(event.id);
  const std::string why = event.why.empty() ? "" : ": " + escaped(event.why);
  switch (event.kind) {
    case Kind::ended: {
      if (is_good(event) && !verbose_) return;
      const char* const then = event.parked ? "; parked for an operator, and deleted"
                                            : (event.deleted ? "; deleted" : "; it stays in the queue");
      return say(message + " (receipt " + std::to_string(event.receive_count) +
                 "): " + std::string(to_string(event.end)) + why + then);
    }
    case Kind::given_back:
      if (verbose_) say(message + " is returned to the queue" + why);
      return;
    case Kind::overdue:
      return say(message + " could not be hidden for longer, so other consumers may receive it" + why);
    case Kind::not_hidden:
      return say(message +
                 "'s visibility could not be changed; it is delivered again when its visibility timeout ends" + why);
    case Kind::not_deleted:
      return say(message + " is done, but not deleted: the next delivery deletes it" + why);
    case Kind::pause:
      return say("receiving pauses for " + show_duration(event.pause) + why);
    case Kind::abandoned:
      return say("stopped waiting for the queue's answer; messages in it stay hidden for " +
                 show_duration(visibility_));
  }
}

void SqsLog::note(std::string_view text) const {
  if (on_ && LogLevel::notice <= level_) say(text);
}

}  // namespace once::cli
