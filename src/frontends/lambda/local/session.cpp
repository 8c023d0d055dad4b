#include <array>
#include <memory_resource>
#include <string_view>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/status.hpp>

#include <once/error.hpp>

#include "frontends/lambda/local/impl.hpp"
#include "text/base64.hpp"
#include "text/json.hpp"

namespace once::lambda {

namespace {

namespace lhttp = boost::beast::http;
using Point = LocalApiOptions::Point;

constexpr std::string_view api_base = "/2018-06-01/runtime/";
// Lambda-Runtime-Function-XRay-Error-Cause alone may have 1 MiB (AWS, "Using the Lambda runtime API").
constexpr std::uint32_t request_head_bytes = 2 * 1024 * 1024;
constexpr std::size_t discard_bytes =
    std::size_t{64} * 1024 * 1024;  // How much of a refused body is read before the connection is cut.

// Reads errorType and errorMessage of {"errorMessage": ..., "errorType": ...}, if present.
void read_error(InvocationOutcome& outcome) {
  std::pmr::monotonic_buffer_resource arena;
  text::json::Value value;
  const text::json::Rules lenient{.unique_names = false, .exact_numbers = false, .lone_surrogates = true};
  if (!text::json::try_parse(outcome.error_body, lenient, arena, value)) return;
  if (value.kind() != text::json::Kind::object) return;
  const auto text = [&](std::string_view name) {
    const text::json::Value member = value.member(name);
    return member.kind() == text::json::Kind::string ? std::string(member.text()) : std::string();
  };
  if (outcome.error_type.empty()) outcome.error_type = text("errorType");
  outcome.error_message = text("errorMessage");
}

std::string error_json(std::string_view type, std::string_view message) {
  return R"({"errorMessage":")" + std::string(message) + R"(","errorType":")" + std::string(type) + "\"}\n";
}

std::optional<ApiRoute> route_of(lhttp::verb method, std::string_view target) {
  if (!target.starts_with(api_base)) return std::nullopt;
  target.remove_prefix(api_base.size());
  if (method == lhttp::verb::get) {
    if (target == "restore/next") return ApiRoute{.call = ApiCall::restore_next, .id = {}};
    return target == "invocation/next" ? std::optional<ApiRoute>(ApiRoute{}) : std::nullopt;
  }
  if (method != lhttp::verb::post) return std::nullopt;
  if (target == "restore/error") return ApiRoute{.call = ApiCall::restore_error, .id = {}};
  if (target == "init/error") return ApiRoute{.call = ApiCall::init_error, .id = {}};
  constexpr std::string_view prefix = "invocation/";
  if (!target.starts_with(prefix)) return std::nullopt;
  target.remove_prefix(prefix.size());
  const auto slash = target.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  const std::string_view what = target.substr(slash + 1);
  if (what != "response" && what != "error") return std::nullopt;
  return ApiRoute{.call = what == "response" ? ApiCall::response : ApiCall::error,
                  .id = std::string(target.substr(0, slash))};
}

}  // namespace

void LocalApi::Impl::Session::start() {
  error_code ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  read();
}

void LocalApi::Impl::Session::close(bool reset) {
  if (!socket_.is_open()) return;
  error_code ignored;
  if (reset) socket_.set_option(asio::socket_base::linger(true, 0), ignored);
  if (!reset) socket_.shutdown(tcp::socket::shutdown_send, ignored);
  socket_.close(ignored);
  const auto self = shared_from_this();
  std::erase_if(server_.waiting, [&](const auto& one) { return one.first == self; });
  std::erase(server_.restoring, self);
  if (std::exchange(stuck_, false)) --server_.stuck;
  server_.sessions.erase(self);
  server_.count([](Counts& c) { --c.open; });
  server_.count_lists();
}

void LocalApi::Impl::Session::watch() {
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](error_code error) {
    if (error || !self->socket_.is_open()) return;
    char byte = 0;
    error_code peeked;
    self->socket_.non_blocking(true, peeked);
    const std::size_t count = self->socket_.receive(asio::buffer(&byte, 1), tcp::socket::message_peek, peeked);
    if (count == 0 && peeked != asio::error::would_block) self->close();
  });
}

void LocalApi::Impl::Session::send_event(const InvocationPtr& invocation, const std::optional<ApiFault>& fault,
                                         const std::string& head) {
  error_code ignored;
  socket_.cancel(ignored);  // The watch.
  if (fault && after(*fault)) return close(fault->kind == ApiFault::Kind::reset_after);
  answer_head_ = head;
  const bool half = fault && fault->kind == ApiFault::Kind::half_answer;
  std::size_t body = invocation->event.size();
  if (half) {
    body /= 2;
    if (body == 0) answer_head_.erase(answer_head_.size() / 2);
  }
  const std::array<asio::const_buffer, 2> buffers{asio::buffer(answer_head_),
                                                  asio::buffer(invocation->event.data(), body)};
  asio::async_write(socket_, buffers, [self = shared_from_this(), invocation, half](error_code error, std::size_t) {
    if (error) {
      self->server_.not_delivered(invocation);
      return self->close();
    }
    if (self->server_.running.contains(invocation->options.request_id)) {
      self->server_.see(Point::given, invocation->options.request_id);
    }
    if (half) return self->close();
    self->next_request();
  });
}

void LocalApi::Impl::Session::send(unsigned status, std::string body, Callback<void()> sent) {
  const std::optional<ApiFault> fault = std::exchange(fault_, std::nullopt);
  if (fault && after(*fault)) {
    if (sent) sent();
    return close(fault->kind == ApiFault::Kind::reset_after);
  }
  const bool half = fault && fault->kind == ApiFault::Kind::half_answer;
  const bool last = half || discard_;
  answer_head_ = "HTTP/1.1 " + std::to_string(status) + ' ' +
                 std::string(lhttp::obsolete_reason(lhttp::int_to_status(status))) +
                 "\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
                 (last ? "\r\nConnection: close\r\n\r\n" : "\r\n\r\n") + body;
  if (half) answer_head_.erase(answer_head_.size() - (body.size() + 1) / 2);
  asio::async_write(socket_, asio::buffer(answer_head_),
                    [self = shared_from_this(), sent = std::move(sent), half](error_code error, std::size_t) mutable {
                      if (sent) sent();
                      if (error || half) return self->close();
                      if (self->discard_) return self->discard(discard_bytes);
                      self->next_request();
                    });
}

void LocalApi::Impl::Session::send_restored() {
  error_code ignored;
  socket_.cancel(ignored);  // The watch.
  send(200, "");
}

bool LocalApi::Impl::Session::after(const ApiFault& fault) {
  return fault.kind == ApiFault::Kind::reset_after || fault.kind == ApiFault::Kind::close_after;
}

void LocalApi::Impl::Session::next_request() {
  if (!socket_.is_open()) return;
  if (parser_ && !parser_->get().keep_alive()) return close();
  read();
}

void LocalApi::Impl::Session::read() {
  parser_.emplace();
  parser_->header_limit(request_head_bytes);
  parser_->body_limit(boost::none);  // Until the request's kind is known.
  discard_ = false;
  fault_.reset();
  lhttp::async_read_header(socket_, buffer_, *parser_, [self = shared_from_this()](error_code error, std::size_t) {
    if (!error) return self->on_head();
    if (error == lhttp::error::end_of_stream || error == asio::error::connection_reset ||
        error == asio::error::operation_aborted || error == asio::error::eof) {
      return self->close();
    }
    self->refuse(400, "BadRequest", "this is not a request of the Runtime API");
  });
}

void LocalApi::Impl::Session::refuse(unsigned status, std::string_view type, std::string_view message) {
  server_.count([](Counts& c) { ++c.refused; });
  discard_ = true;
  send(status, error_json(type, message));
}

void LocalApi::Impl::Session::on_head() {
  const auto& request = parser_->get();
  const auto target = request.target();
  auto route = route_of(request.method(), std::string_view(target.data(), target.size()));
  // AWS's emulator has them only for functions with SnapStart (rapi/router.go).
  const bool snapshots = route && (route->call == ApiCall::restore_next || route->call == ApiCall::restore_error);
  if (!route || (snapshots && !server_.options.snap_start))
    return refuse(404, "NotFound", "the Runtime API has no such call");
  route_ = *std::move(route);
  fault_ = server_.take_fault(route_.call);
  if (fault_ && fault_->kind == ApiFault::Kind::refuse_early) {
    const unsigned status = std::exchange(fault_, std::nullopt)->status;
    discard_ = true;
    return send(status, error_json(status == 413 ? "RequestEntityTooLarge" : "Planned", "a planned fault"));
  }
  streamed_ = route_.call == ApiCall::response && header("Lambda-Runtime-Function-Response-Mode") == "streaming";
  limit_ = streamed_ ? server_.options.max_stream_bytes : server_.options.max_response_bytes;
  const auto length = parser_->content_length();
  if (length && *length > limit_) return too_large();
  parser_->body_limit(static_cast<std::uint64_t>(limit_));
  lhttp::async_read(socket_, buffer_, *parser_, [self = shared_from_this()](error_code error, std::size_t) {
    if (error == lhttp::error::body_limit) return self->too_large();
    if (error) return self->cut_off();
    self->on_request();
  });
}

void LocalApi::Impl::Session::too_large() {
  count_call();
  const InvocationPtr invocation = of_this_attempt();
  if (route_.call == ApiCall::response && invocation) {
    InvocationOutcome outcome;
    outcome.kind = InvocationOutcome::Kind::error;
    outcome.streamed = streamed_;
    if (streamed_) outcome.body = std::move(parser_->get().body());
    outcome.error_type = "Function.ResponseSizeTooLarge";
    outcome.error_message = "the response is larger than " + std::to_string(limit_) + " bytes";
    server_.finish(invocation, std::move(outcome));
  }
  refuse(413, "RequestEntityTooLarge", "the body is larger than " + std::to_string(limit_) + " bytes");
}

void LocalApi::Impl::Session::cut_off() {
  const InvocationPtr invocation = of_this_attempt();
  if (streamed_ && invocation) {
    InvocationOutcome outcome;
    outcome.kind = InvocationOutcome::Kind::error;
    outcome.streamed = true;
    outcome.body = std::move(parser_->get().body());
    outcome.content_type = header("Content-Type");
    outcome.error_type = "Runtime.TruncatedResponse";
    outcome.error_message = "the connection ended within the streamed response";
    server_.finish(invocation, std::move(outcome));
  }
  close();
}

InvocationPtr LocalApi::Impl::Session::of_this_attempt() const {
  const auto found = server_.running.find(route_.id);
  if (found == server_.running.end()) return nullptr;
  const std::string attempt = header("Lambda-Runtime-Invocation-Id");
  return attempt.empty() || attempt == found->second->invocation_id ? found->second : nullptr;
}

void LocalApi::Impl::Session::count_call() {
  server_.count([&](Counts& c) {
    switch (route_.call) {
      case ApiCall::next:
        ++c.next;
        return;
      case ApiCall::response:
        ++c.responses;
        return;
      case ApiCall::error:
        ++c.errors;
        return;
      case ApiCall::init_error:
        ++c.init_errors;
        return;
      case ApiCall::restore_next:
        ++c.restores;
        return;
      case ApiCall::restore_error:
        ++c.restore_errors;
        return;
    }
  });
}

void LocalApi::Impl::Session::on_request() {
  count_call();
  if (fault_) {
    switch (fault_->kind) {
      case ApiFault::Kind::reset_before:
        return close(true);
      case ApiFault::Kind::close_before:
        return close();
      case ApiFault::Kind::status: {
        const unsigned status = std::exchange(fault_, std::nullopt)->status;
        return send(status, error_json("Planned", "a planned fault"));
      }
      case ApiFault::Kind::paused:
        fault_.reset();
        server_.paused.emplace_back([self = shared_from_this()] {
          if (self->socket_.is_open()) self->carry_out();
        });
        return server_.count_lists();
      default:
        break;  // At the answer.
    }
  }
  carry_out();
}

void LocalApi::Impl::Session::carry_out() {
  if (route_.call == ApiCall::next) {
    server_.waiting.emplace_back(shared_from_this(), std::exchange(fault_, std::nullopt));
    watch();
    if (server_.queue.empty()) server_.see(Point::waiting, {});
    return server_.match();
  }
  if (route_.call == ApiCall::restore_next) {
    if (server_.is_restored) return send(200, "");
    server_.restoring.push_back(shared_from_this());
    watch();
    return server_.count_lists();
  }
  InvocationOutcome outcome;
  outcome.kind = route_.call == ApiCall::response ? InvocationOutcome::Kind::response : InvocationOutcome::Kind::error;
  outcome.content_type = header("Content-Type");
  auto& body = parser_->get().body();
  if (route_.call == ApiCall::response) {
    outcome.body = std::move(body);
    outcome.streamed = streamed_;
    if (parser_->chunked()) read_trailers(outcome);
  } else {
    outcome.error_type = header("Lambda-Runtime-Function-Error-Type");
    outcome.error_body = std::move(body);
    read_error(outcome);
  }
  if (route_.call == ApiCall::init_error || route_.call == ApiCall::restore_error) return take_init_error(outcome);
  const InvocationPtr invocation = of_this_attempt();
  if (!invocation) {
    server_.count([](Counts& c) { ++c.refused; });
    if (server_.running.contains(route_.id)) {
      return send(410, error_json("ErrorRuntimeInvokeTimeout", "that attempt of the invocation is over"));
    }
    return send(400, error_json("InvalidRequestID", "no invocation with this id is open"));
  }
  if (!server_.see(Point::answering, route_.id)) {
    stuck_ = true;
    ++server_.stuck;
    server_.count_lists();
    return watch();
  }
  server_.finish(invocation, std::move(outcome));
  send(202, "{\"status\":\"OK\"}\n",
       [self = shared_from_this(), id = route_.id] { self->server_.see(Point::answered, id); });
}

void LocalApi::Impl::Session::read_trailers(InvocationOutcome& outcome) {
  outcome.error_type = header("Lambda-Runtime-Function-Error-Type");
  if (outcome.error_type.empty()) return;
  outcome.kind = InvocationOutcome::Kind::error;
  outcome.error_body = text::decode_base64(header("Lambda-Runtime-Function-Error-Body")).value_or("");
  read_error(outcome);
}

void LocalApi::Impl::Session::take_init_error(InvocationOutcome& outcome) {
  {
    const std::lock_guard lock(server_.mutex);
    server_.init_error = outcome;
  }
  if (!server_.queue.empty()) {
    const InvocationPtr first = server_.queue.front();
    server_.queue.pop_front();
    server_.finish(first, outcome);
  }
  send(202, "{\"status\":\"OK\"}\n");
}

std::string LocalApi::Impl::Session::header(const char* name) const {
  const auto& request = parser_->get();
  const auto found = request.find(name);
  return found == request.end() ? std::string() : std::string(found->value());
}

void LocalApi::Impl::Session::discard(std::size_t left) {
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  buffer_.clear();
  discarded_.resize(65536);
  socket_.async_read_some(asio::buffer(discarded_),
                          [self = shared_from_this(), left](error_code error, std::size_t size) {
                            if (error || size >= left) return self->close();
                            self->discard(left - size);
                          });
}

}  // namespace once::lambda
