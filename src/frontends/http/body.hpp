// What a body means: its content without compression, and the parts of a form.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <once/frontends/http/message.hpp>

namespace once::http {

// The body without its Content-Encoding (gzip, x-gzip, deflate, identity; at most three). Empty: it has none, it has
// another one, it is damaged, or it inflates to more than max_bytes. Then the bytes are all that can be compared.
std::optional<std::string> inflated_body(const Request& request, std::size_t max_bytes);

// A value of Content-Type. Names are in lower case; values are without their quotes, and otherwise unchanged.
struct MediaType {
  struct Parameter {
    std::string name;
    std::string_view value;
  };
  std::string name;  // "multipart/form-data"
  std::vector<Parameter> parameters;

  [[nodiscard]] bool is_multipart() const noexcept { return name.starts_with("multipart/"); }
};

// Of the request's only Content-Type. Empty: none, several, or malformed.
std::optional<MediaType> media_type_of(const Request& request);

// A body of several parts (RFC 2046, section 5.1; forms: RFC 7578) as a text that does not depend on the boundary. Two
// texts are equal only if all parts are, in their order: name, file name, type, other fields, bytes. Parts that have
// parts themselves are written likewise. A text before the first boundary, or after the last one, counts too. Empty:
// `content` is malformed, for example because its last boundary is missing.
std::optional<std::string> parts_text(const MediaType& type, std::string_view content);

// All values of a field in a form: multipart/form-data or application/x-www-form-urlencoded. Empty: not a form, or a
// malformed one.
std::optional<std::vector<std::string>> form_values(const MediaType& type, std::string_view content,
                                                    std::string_view name);

// The values of a name in "a=1&b=2", with '+' for a blank and escapes (application/x-www-form-urlencoded).
std::vector<std::string> pair_values(std::string_view text, std::string_view name);

}  // namespace once::http
