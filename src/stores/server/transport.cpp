#include "stores/server/transport.hpp"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <utility>

#include <once/platform/system.hpp>

#include "aws/http_client.hpp"
#include "platform/command.hpp"
#include "platform/file.hpp"
#include "platform/thread.hpp"
#include "platform/wait.hpp"
#include "stores/server/address.hpp"

namespace once::stores {

namespace {

constexpr std::size_t max_connections = 65'536;  // Each waiting call has one.
constexpr std::size_t max_response_bytes = std::size_t{16} << 20U;
constexpr std::size_t max_token_bytes = 4'096;
constexpr Millis start_limit{70'000};  // Longer than `once serve --on-demand` takes to give up.
constexpr int usage_status = 64;       // Of the program.

std::shared_ptr<aws::HttpClient> make_client(const ServerOptions& options) {
  aws::HttpClientOptions http;
  http.max_connections = max_connections;
  http.connect_timeout = std::min<Millis>(Millis{5'000}, options.timeout);
  http.max_body_bytes = max_response_bytes;
  http.ca_file = options.ca_file;
  http.ca_variable = "ONCE_CA_FILE";
  http.certificate_file = options.cert_file;
  http.key_file = options.key_file;
  http.certificate_option = "cert_file";
  http.check_peer = [is_on_demand = !options.on_demand.empty()](int socket, const std::string& path) {
    return check_peer(socket, path, is_on_demand);
  };
  return aws::make_http_client(std::move(http));
}

// For platform/command: one word, whatever is in it.
std::string quoted_word(std::string_view word) {
  std::string out = "'";
  for (const char c : word) {
    if (c == '\'') {
      out += R"('"'"')";
    } else {
      out += c;
    }
  }
  return out + "'";
}

// Blocks. Runs the program, which prints where its server listens.
std::string start_server(const ServerOptions& options) {
  const std::string printed = output_of(quoted_word(options.program) + " serve --on-demand",
                                        {.name = "'" + options.program + " serve --on-demand'",
                                         .limit = start_limit,
                                         // All users see a command line, and the URL may have a password.
                                         .variables = {"ONCE_STORE=" + options.on_demand},
                                         .keeps_errors = true,
                                         .misuse_status = usage_status});
  const auto line = nlohmann::json::parse(printed, nullptr, false);
  const bool has_socket = line.is_object() && line.contains("socket") && line["socket"].is_string();
  std::string socket = has_socket ? line["socket"].get<std::string>() : std::string();
  if (socket.empty() || socket.front() != '/') {
    throw Exception(ErrorKind::misuse, "'" + options.program +
                                           " serve --on-demand' did not print where it listens: is it another program, "
                                           "or an older version of once? ONCE_PROGRAM names the right one");
  }
  return socket;
}

Exchanged failed(Error error, bool is_final) {
  Exchanged exchanged;
  exchanged.error = std::move(error);
  exchanged.is_final = is_final;
  return exchanged;
}

bool is_stopping(const aws::HttpAnswer& answer) {
  return answer.status == 503 && answer.body.find("urn:once:problem:stopping") != std::string::npos;
}

}  // namespace

Transport::Transport(ServerOptions options) : options_(std::move(options)), http_(make_client(options_)) {
  if (!options_.on_demand.empty()) socket_ = options_.socket;
}

void Transport::send(Sending sending, Millis timeout, Callback<void(Exchanged&&)> done) {
  auto call = std::make_shared<Call>(
      Call{.sending = std::move(sending), .until = system_clock()->uptime() + timeout, .done = std::move(done)});
  dispatch(call);
}

void Transport::dispatch(const CallPtr& call) {
  if (options_.on_demand.empty()) return transmit(call);
  {
    const std::lock_guard lock(mutex_);
    call->socket = socket_;
  }
  if (call->socket.empty()) return start(call);
  transmit(call);
}

void Transport::start(const CallPtr& call) {
  {
    const std::lock_guard lock(mutex_);
    if (waiting_) {
      waiting_->push_back(call);
      return;
    }
    waiting_.emplace(1, call);
  }
  try {
    start_thread([kept = shared_from_this()]() mutable {
      const WakesAfter gone;  // Who waits returns when this thread has nothing of the store any more.
      const auto self = std::move(kept);
      try {
        self->started(start_server(self->options_), std::nullopt);
      } catch (const Exception& error) {
        self->started({}, error.error());
      }
    }).detach();
  } catch (const std::system_error& error) {
    started({}, Error{ErrorKind::unavailable, std::string("cannot start a thread: ") + error.what()});
  }
}

void Transport::started(const std::string& socket, std::optional<Error> error) {
  std::vector<CallPtr> calls;
  {
    const std::lock_guard lock(mutex_);
    socket_ = socket;
    calls = std::move(*waiting_);
    waiting_.reset();
  }
  for (const CallPtr& call : calls) {
    if (error) {
      call->done(failed(*error, true));
      continue;
    }
    call->socket = socket;
    transmit(call);
  }
}

void Transport::transmit(const CallPtr& call) {
  aws::HttpRequest request;
  request.method = call->sending.method;
  request.target = call->sending.target;
  request.body = call->sending.body;
  request.timeout = std::max(std::chrono::ceil<Millis>(call->until - system_clock()->uptime()), Millis{1});
  if (options_.host.empty()) {
    request.tls = false;
    request.host = "once";
    request.port = 80;  // As in "Host: once".
    request.socket = options_.on_demand.empty() ? options_.socket : call->socket;
  } else {
    request.tls = options_.tls;
    request.host = options_.host;
    request.port = options_.port;
  }
  request.headers.emplace_back("User-Agent", "once/" ONCE_VERSION);
  if (!call->sending.content_type.empty()) request.headers.emplace_back("Content-Type", call->sending.content_type);
  if (!options_.host.empty() && options_.cert_file.empty()) {
    try {
      if (call->token.empty()) call->token = token({});
    } catch (const Exception& error) {
      return call->done(failed(error.error(), true));
    }
    request.headers.emplace_back("Authorization", "Bearer " + call->token);
  }
  http_->send(std::move(request),
              [self = shared_from_this(), call](aws::HttpAnswer answer) { self->answered(call, std::move(answer)); });
}

void Transport::answered(const CallPtr& call, aws::HttpAnswer&& answer) {
  const bool may_repeat = std::exchange(call->may_repeat, false);
  if (!options_.on_demand.empty() &&
      ((answer.error && answer.error->kind != ErrorKind::misuse) || is_stopping(answer))) {
    // It has ended, or is ending.
    {
      const std::lock_guard lock(mutex_);
      if (socket_ == call->socket) socket_.clear();
    }
    const bool was_sent = answer.error && answer.error->kind == ErrorKind::in_doubt;
    if (may_repeat && !was_sent) return start(call);
  }
  if (answer.error) {
    const bool is_final = answer.error->kind == ErrorKind::misuse;
    if (answer.refused_certificate) answer.error->message = certificate_advice();
    return call->done(failed(std::move(*answer.error), is_final));
  }
  if (answer.status == 401 && may_repeat && !call->token.empty()) {
    try {
      std::string renewed = token(call->token);
      if (renewed != call->token) {
        call->token = std::move(renewed);
        return transmit(call);
      }
    } catch (const Exception&) {  // It is just being replaced, perhaps: the answer stands.
    }
  }
  Exchanged exchanged;
  Response& response = exchanged.response;
  response.status = answer.status;
  response.answer = answer.header("once-answer");
  response.content_type = answer.header("content-type");
  response.retry_after = answer.header("retry-after");
  response.attempt = answer.header("once-attempt");
  response.holder = answer.header("once-holder");
  response.finished_at = answer.header("once-finished-at");
  response.body = std::move(answer.body);
  if (response.status == 401) response.token_file = options_.token_file;
  call->done(std::move(exchanged));
}

std::string Transport::certificate_advice() const {
  if (options_.cert_file.empty()) return "the server wants a client certificate: name it in cert_file= and key_file=";
  return "the server does not accept the client certificate in " + options_.cert_file;
}

std::string Transport::token(const std::string& refused) {
  {
    const std::lock_guard lock(mutex_);
    if (!token_.empty() && token_ != refused) return token_;
  }
  const std::string& file = options_.token_file;
  std::string text = read_token_file(file, max_token_bytes);
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
  while (!text.empty() && is_space(text.back())) text.pop_back();
  while (!text.empty() && is_space(text.front())) text.erase(0, 1);
  const bool is_token = !text.empty() && std::ranges::all_of(text, [](char c) { return c > ' ' && c < 0x7f; });
  if (!is_token) throw Exception(ErrorKind::misuse, "the token file " + file + " holds no token");
  const std::lock_guard lock(mutex_);
  return token_ = text;
}

}  // namespace once::stores
