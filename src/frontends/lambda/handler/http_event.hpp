// An HTTP event as a request, and an answer in the matching form.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory_resource>
#include <string>
#include <string_view>

#include <once/frontends/http/message.hpp>

#include "keys/jmespath/selector.hpp"
#include "text/json.hpp"

namespace once::lambda {

class HttpEvent {
 public:
  enum class Form : std::uint8_t {
    rest,             // API Gateway, payload format 1.0.
    http_api,         // API Gateway and function URLs, payload format 2.0.
    alb,              // A load balancer,
    alb_multi_value,  // … whose target group has multi-value headers.
    lattice_v1,       // VPC Lattice, by the event structure version of its target group.
    lattice_v2,
  };

  // Views into `event`, which must outlive it. Throws FunctionError(invalid_event), with the reason.
  explicit HttpEvent(std::string_view event);
  HttpEvent(const HttpEvent&) = delete;
  HttpEvent& operator=(const HttpEvent&) = delete;
  ~HttpEvent() = default;

  [[nodiscard]] bool is_lattice() const noexcept { return form_ == Form::lattice_v1 || form_ == Form::lattice_v2; }
  [[nodiscard]] const text::json::Value& root() const noexcept { return root_; }
  [[nodiscard]] const once::http::Request& request() const noexcept { return request_; }

  // Whom VPC Lattice has authenticated, encoded like a list's principal(). "" if nobody, and for other services.
  [[nodiscard]] std::string lattice_principal() const;

  // The expression's value; "" if only nulls. `sessions`: whether to distinguish sessions of an assumed role, in a
  // list. Throws FunctionError(invalid_event) if it fails or selects objects.
  [[nodiscard]] std::string principal(const keys::Selector& expression, bool sessions);

  [[nodiscard]] std::string response(const once::http::Answer& answer) const;

 private:
  void read_headers();
  void read_target();
  void read_body();
  std::string_view keep(std::string text);

  // Most events fit, so that parsing one costs no allocation.
  std::array<std::byte, 16384> first_;  // NOLINT(cppcoreguidelines-pro-type-member-init): raw room
  std::pmr::monotonic_buffer_resource arena_;
  text::json::Value root_;
  Form form_ = Form::rest;
  std::deque<std::string> texts_;  // Texts that are not in the event as such.
  once::http::Request request_;
};

// A path for a request's target: other characters are percent-encoded.
std::string target_path(std::string_view path);

}  // namespace once::lambda
