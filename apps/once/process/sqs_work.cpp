#include "process/sqs_work.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <stop_token>

#include <once/error.hpp>
#include <once/key.hpp>

#include "aws/endpoint.hpp"
#include "aws/http_client.hpp"
#include "operators/run_result.hpp"
#include "output/report.hpp"
#include "output/text.hpp"
#include "platform/wait.hpp"
#include "text/ascii.hpp"

namespace once::cli {

namespace {

// One string of the environment is at most 128 KiB (execve(2)), and all share the room with the arguments.
constexpr std::size_t most_variable_bytes = std::size_t{16} * 1024;

// The body as an unlinked file.
Fd body_file(const std::string& body) {
  Fd file(memfd_create("once-message", MFD_CLOEXEC));
  if (!file || !write_all(file.get(), body) || lseek(file.get(), 0, SEEK_SET) != 0) {
    throw Exception(ErrorKind::unavailable,
                    std::string("cannot pass the message to the command: ") + std::strerror(errno));
  }
  return file;
}

std::string variable_name(std::string_view attribute) {
  std::string out = "ONCE_SQS_ATTRIBUTE_";
  for (const char c : attribute) out += text::is_letter_or_digit(c) ? text::upper(c) : '_';
  return out;
}

// `code` and `why` go into the record of a failure; `result` is made only if it is kept.
template <class MakeResult>
sqs::WorkEnd work_end(CommandFate fate, const std::string& code, const std::string& why, MakeResult&& result) {
  using Kind = sqs::WorkEnd::Kind;
  switch (fate) {
    case CommandFate::success:
      return {.kind = Kind::completed, .result = result()};
    case CommandFate::store:
      return {.kind = Kind::failed, .result = result(), .failure = {.code = code, .message = why}};
    case CommandFate::release:
      return {.kind = Kind::released, .failure = {.code = code, .message = why}};
    case CommandFate::hold:
      break;
  }
  return {.kind = Kind::held, .failure = {.code = code, .message = why + "; it may have acted"}};
}

}  // namespace

struct Commands::Running {
  Wakeup changed;
  std::atomic<bool> lost{false};
};

// Which command has which lease.
class Commands::Register {
 public:
  std::shared_ptr<Running> add(const std::string& key) {
    auto running = std::make_shared<Running>();
    const std::lock_guard lock(mutex_);
    running->lost = ending_;
    running_[key] = running;
    return running;
  }
  void remove(const std::string& key) {
    const std::lock_guard lock(mutex_);
    running_.erase(key);
  }
  void wake(std::string_view key) {
    const std::lock_guard lock(mutex_);
    const auto found = running_.find(key);
    if (found != running_.end()) found->second->changed.set();
  }
  void end_all() {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    for (const auto& [key, running] : running_) {
      running->lost = true;
      running->changed.set();
    }
  }

 private:
  std::mutex mutex_;
  bool ending_ = false;
  std::map<std::string, std::shared_ptr<Running>, std::less<>> running_;
};

Commands::Commands(CommandWork work, Signals& signals, std::function<void(int)> cannot_run)
    : work_(std::move(work)),
      signals_(signals),
      cannot_run_(std::move(cannot_run)),
      register_(std::make_unique<Register>()) {}

Commands::~Commands() = default;

void Commands::on_event(const Event& event) {
  if (event.kind == EventKind::renewed) register_->wake(event.key);
}

void Commands::end_all() { register_->end_all(); }

// execve(2)
bool cannot_ever_run(int exec_errno) noexcept {
  switch (exec_errno) {
    case ENOENT:
    case EACCES:
    case EPERM:
    case ENOEXEC:
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
    case EINVAL:
    case ELIBBAD:
      return true;
    default:
      return false;
  }
}

std::vector<std::pair<std::string, std::string>> message_environment(const sqs::Message& message) {
  std::vector<std::pair<std::string, std::string>> out = {
      {"ONCE_SQS_MESSAGE_ID", message.id},
      {"ONCE_SQS_RECEIVE_COUNT", std::to_string(message.receive_count)},
      {"ONCE_SQS_SENT_MS", std::to_string(unix_ms(message.sent))},
      {"ONCE_SQS_QUEUE_ARN", message.queue_arn},
      {"ONCE_SQS_GROUP_ID", message.group_id},
      {"ONCE_SQS_DEDUPLICATION_ID", message.deduplication_id}};
  for (const sqs::Message::Attribute& attribute : message.attributes) {
    if (attribute.value.size() > most_variable_bytes) continue;
    out.emplace_back(variable_name(attribute.name), attribute.value);
  }
  return out;
}

sqs::WorkEnd Commands::run(const sqs::Message& message, Claim& claim) {
  using Kind = sqs::WorkEnd::Kind;
  const std::string key = claim.key();
  const std::shared_ptr<Running> running = register_->add(key);
  struct Leaving {
    Register& all;
    const std::string& key;
    ~Leaving() { all.remove(key); }
  } const leaving{*register_, key};
  // A lease that ended in a sleep of the host may be renewed: until then the guard pauses the command.
  const std::stop_callback on_loss(claim.loss_token(), [running] {
    running->lost = true;
    running->changed.set();
  });

  const Key parts = Key::from_stored(key);
  std::vector<std::pair<std::string, std::string>> variables = message_environment(message);
  for (auto& [name, value] :
       std::vector<std::pair<std::string, std::string>>{{"ONCE_KEY", std::string(parts.name())},
                                                        {"ONCE_SCOPE", parts.scope()},
                                                        {"ONCE_ATTEMPT", std::to_string(claim.attempt())},
                                                        {"ONCE_TOKEN", std::to_string(claim.token())},
                                                        {"ONCE_DERIVED_KEY", claim.derived_key(work_.derive_name)}}) {
    variables.emplace_back(std::move(name), std::move(value));
  }
  add_trace(variables, claim.trace());
  const Fd body = body_file(message.body);
  SuperviseOptions options;
  options.command = work_.command;
  options.environment = environment_of_command(variables);
  options.input = body.get();
  options.take_signals = false;
  options.grace = work_.grace;
  options.changed = &running->changed;
  options.deadline = [&] { return std::optional<Uptime>(claim.deadline()); };
  options.lost = [&] { return running->lost.load(); };
  options.lease = work_.lease;
  Recorder recorder(work_.output_limit);
  Supervised supervised;
  try {
    supervised = supervise(options, signals_, recorder);
  } catch (const CommandUnwatched& error) {  // It may have acted: the claim's policy for a lapse decides.
    return {.kind = Kind::lapses, .failure = {.message = error.what()}};
  }

  if (supervised.kind == Supervised::Kind::not_started) {
    if (cannot_ever_run(supervised.error)) cannot_run_(supervised.error);
    return {.kind = Kind::released,
            .failure = {.message = std::string("the command cannot be executed: ") + std::strerror(supervised.error)}};
  }
  if (supervised.kind == Supervised::Kind::guard_died) {
    return {.kind = Kind::lapses,
            .failure = {.message = "the process that guarded the command was killed, and so was the command"}};
  }
  const CommandEnd end = supervised.end;
  const std::string ended = end.text();
  std::string why = "the command ended with " + ended;
  if (supervised.out_of_time) why += ", because once stopped it: the claim was lost, or once is ending";
  const auto result = [&] { return Result::inlined(recorder.finish(end), std::string(run_content_type)); };
  return work_end(work_.rules.fate(end, supervised.out_of_time, claim.record().on_lapse), ended, why, result);
}

CommandFate fate_of_answer(int status, bool arrived, CommandFate on_failure, OnLapse on_lapse) {
  if (status >= 200 && status < 300) return CommandFate::success;
  // Nothing was done, by the status or by the network error.
  const bool nothing = status == 408 || status == 409 || status == 425 || status == 429;
  if (nothing || (status == 0 && !arrived)) return CommandFate::release;
  // Not known. A service that uses the key acts once when asked again.
  if (status == 502 || status == 503 || status == 504 || status == 0) {
    return on_lapse == OnLapse::hold ? CommandFate::hold : CommandFate::release;
  }
  return on_failure;
}

bool is_down(int status, bool arrived) noexcept { return status == 503 || (status == 0 && !arrived); }

sqs::PolledWork post_work(PostWork work, std::function<void(const std::string&)> cannot_post) {
  const std::string_view url = work.url;
  const std::size_t authority = url.find("://");
  const std::size_t path = authority == std::string_view::npos ? authority : url.find_first_of("/?", authority + 3);
  if (authority == std::string_view::npos || url.find('#') != std::string_view::npos) {
    misuse("--post " + escaped(url) + ": write a URL, as in http://127.0.0.1:8080/orders");
  }
  const aws::Endpoint endpoint = aws::parse_endpoint(url.substr(0, path), "--post");
  std::string target(path == std::string_view::npos ? "/" : url.substr(path));
  if (target.front() == '?') target.insert(0, "/");
  if (std::any_of(target.begin(), target.end(), [](char c) { return c <= 0x20 || c == 0x7f; })) {
    misuse("--post " + escaped(url) + ": its path has characters that must be percent-encoded");
  }
  if (std::any_of(work.content_type.begin(), work.content_type.end(),
                  [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; })) {
    misuse("--content-type " + escaped(work.content_type) + ": it has control characters, which no header can have");
  }
  constexpr std::size_t least_connections = 64;
  const std::shared_ptr<aws::HttpClient> client =
      aws::make_http_client({.max_connections = std::max(least_connections, work.parallel)});
  return [client, endpoint, target, work = std::move(work), cannot_post = std::move(cannot_post)](
             const sqs::Message& message, Claim& claim) -> sqs::WorkEnd {
    using Kind = sqs::WorkEnd::Kind;
    aws::HttpRequest request;
    request.method = "POST";
    request.tls = endpoint.tls;
    request.host = endpoint.host;
    request.port = endpoint.port;
    request.target = target;
    request.headers = {{"Content-Type", work.content_type},
                       {"Idempotency-Key", claim.derived_key(work.derive_name)},
                       {"User-Agent", "once/" ONCE_VERSION}};
    if (const TraceContext trace = claim.trace(); !trace.parent.empty()) {
      request.headers.emplace_back("traceparent", trace.parent.text());
      if (!trace.state.empty()) request.headers.emplace_back("tracestate", trace.state);
    }
    request.body = message.body;
    request.timeout = work.timeout;
    const aws::HttpAnswer answer = wait_for<aws::HttpAnswer>(
        [&](Callback<void(aws::HttpAnswer)> done) { client->send(std::move(request), std::move(done)); });
    if (answer.error && answer.error->kind == ErrorKind::misuse) cannot_post(answer.error->message);
    const bool arrived = !answer.error || answer.error->kind == ErrorKind::in_doubt;
    const int status = answer.error ? 0 : answer.status;
    const std::string code = answer.error ? std::string(to_string(answer.error->kind)) : std::to_string(answer.status);
    const std::string why = answer.error ? answer.error->message : "the service answered " + code;
    const auto result = [&] {
      return Result::inlined(answer.body,
                             std::string(answer.header("content-type")).substr(0, Result::max_content_type_bytes));
    };
    const CommandFate fate = fate_of_answer(status, arrived, work.on_failure, claim.record().on_lapse);
    sqs::WorkEnd end = work_end(fate, code, why, result);
    if (end.kind == Kind::released && is_down(status, arrived)) end.kind = Kind::unavailable;
    return end;
  };
}

}  // namespace once::cli
