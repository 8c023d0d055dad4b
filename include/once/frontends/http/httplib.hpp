// For servers on cpp-httplib, whose handlers block: wraps a handler into an endpoint. Needs cpp-httplib 0.11 or later,
// where it is included.
//
//   server.Post("/charges", once::http::wrap(endpoint, [](const httplib::Request& request, httplib::Response& response)
//   {
//     response.set_content(charge(request.body), "application/json");
//   }));
//
// examples/http_httplib.cpp is a whole server.
#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <httplib.h>

#include <once/engine/unwinding.hpp>
#include <once/frontends/http/endpoint.hpp>

namespace once::http {

// Like httplib::Server::Handler, with the request's Execution.
using HttplibHandler = std::function<void(const httplib::Request&, httplib::Response&, Execution&)>;

// Returns Request::principal. Called before anything else. Its exceptions pass through.
using HttplibPrincipal = std::function<std::string(const httplib::Request&)>;

namespace detail {

// Since 0.23, the fields of a form and its files are two maps in `form`. Before, they were one: `files`.
template <class Message>
concept HasTwoMaps = requires(const Message& message) {
  message.form.fields;
  message.form.files;
};

template <class Message>
bool has_parts(const Message& message) {
  if constexpr (HasTwoMaps<Message>) {
    return !message.form.fields.empty() || !message.form.files.empty();
  } else {
    return !message.files.empty();
  }
}

// The server has split the body of a form (multipart/form-data) into parts, by their names. So the parts are compared
// instead of the body: the same for each version of cpp-httplib.
template <class Message>
std::string parts_of(const Message& message) {
  std::string out;
  const auto add = [&](std::string_view text) {
    out += std::to_string(text.size());
    out += ':';
    out += text;
  };
  const auto add_file = [&](const auto& named) {
    add(named.first);
    add(named.second.filename);
    add(named.second.content_type);
    add(named.second.content);
  };
  if constexpr (HasTwoMaps<Message>) {
    auto file = message.form.files.begin();
    for (const auto& [name, field] : message.form.fields) {
      for (; file != message.form.files.end() && file->first < name; ++file) add_file(*file);
      const auto type = field.headers.find("Content-Type");
      add(name);
      add({});
      add(type == field.headers.end() ? std::string_view() : std::string_view(type->second));
      add(field.content);
    }
    for (; file != message.form.files.end(); ++file) add_file(*file);
  } else {
    for (const auto& part : message.files) add_file(part);
  }
  return out;
}

}  // namespace detail

// Views into `message` and `parts`, which must outlive it. `parts` is set if the message is a form with parts.
inline Request to_request(const httplib::Request& message, std::string& parts, std::string_view principal = {}) {
  if (message.body.empty() && detail::has_parts(message)) parts = detail::parts_of(message);
  Request request{.method = message.method,
                  .target = message.target,
                  .headers = {},
                  .body = parts.empty() ? std::string_view(message.body) : std::string_view(parts),
                  .principal = principal};
  for (const auto& [name, value] : message.headers) request.headers.push_back({name, value});
  return request;
}

// A copy of the response, but for a body from a content provider. A status that was not set is 200.
inline Answer to_answer(const httplib::Response& message) {
  Answer answer{.status = message.status < 0 ? 200U : static_cast<unsigned>(message.status),
                .reason = message.reason,
                .headers = {},
                .body = message.body};
  for (const auto& [name, value] : message.headers) answer.headers.push_back({name, value});
  return answer;
}

// The server's default headers stay, unless the answer has them too.
inline void put_answer(Answer answer, httplib::Response& message) {
  message.status = static_cast<int>(answer.status);
  message.reason = std::move(answer.reason);
  for (const Header& header : answer.headers) message.headers.erase(header.name);
  for (Header& header : answer.headers) {
    if (same_name(header.name, "Content-Length") || same_name(header.name, "Transfer-Encoding")) continue;
    message.headers.emplace(std::move(header.name), std::move(header.value));
  }
  message.body = std::move(answer.body);
  message.content_provider_ = nullptr;
}

// Returns a handler that runs once for each key. Exceptions pass through to the server; Options::on_throw decides about
// the operation. A body that is not JSON, where the handler threw the parse error, is answered with 400
// (Execution::is_malformed). A response with a content provider is streamed, and leaves a tombstone. The endpoint must
// outlive the returned handler.
inline httplib::Server::Handler wrap(Endpoint& endpoint, HttplibHandler handler, HttplibPrincipal principal_of = {}) {
  return [&endpoint, handler = std::move(handler), principal_of = std::move(principal_of)](
             const httplib::Request& message, httplib::Response& response) {
    const std::string principal = principal_of ? principal_of(message) : std::string();
    std::string parts;
    Opening opening = endpoint.open(to_request(message, parts, principal));
    if (!opening.runs()) return put_answer(std::move(opening.answer), response);
    Execution& execution = opening.execution;
    if (!execution.may_begin()) return put_answer(execution.finish_unbegun(), response);
    httplib::Headers headers = response.headers;  // The server's own.
    try {
      handler(message, response, execution);
    } catch (...) {               // Any exception is passed to the server.
      if (is_unwinding()) throw;  // As in Engine::run(): the claim lapses.
      const std::exception_ptr error = std::current_exception();
      const bool is_malformed = execution.is_malformed(error, message.body);
      Answer answer = execution.finish_thrown(error, message.body);
      if (!is_malformed) throw;
      response.headers = std::move(headers);
      return put_answer(std::move(answer), response);
    }
    if (!execution.is_protected()) return;
    if (!response.content_provider_) return put_answer(execution.finish(to_answer(response)), response);
    std::optional<Answer> instead = execution.finish_streamed(to_answer(response), response.content_length_);
    if (instead) put_answer(std::move(*instead), response);
  };
}

// The same for a handler that does not need the Execution.
inline httplib::Server::Handler wrap(Endpoint& endpoint, httplib::Server::Handler handler,
                                     HttplibPrincipal principal_of = {}) {
  return wrap(
      endpoint,
      HttplibHandler([handler = std::move(handler)](const httplib::Request& message, httplib::Response& response,
                                                    Execution&) { handler(message, response); }),
      std::move(principal_of));
}

}  // namespace once::http
