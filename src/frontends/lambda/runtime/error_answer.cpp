#include "frontends/lambda/runtime/error_answer.hpp"

#include <cxxabi.h>

#include <cstdlib>
#include <exception>
#include <memory>
#include <typeinfo>
#include <utility>

#include <once/frontends/lambda/invocation.hpp>

#include "text/json_write.hpp"
#include "text/utf8.hpp"

namespace once::lambda::runtime {

namespace {

std::string json_string(std::string_view text) { return text::json::quoted(text::replace_invalid_utf8(text)); }

std::string type_name(const std::type_info* type) {
  if (type == nullptr) return "unknown";
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(abi::__cxa_demangle(type->name(), nullptr, nullptr, &status),
                                                         &std::free);
  return status == 0 ? name.get() : type->name();
}

}  // namespace

std::string printable(std::string_view text, std::size_t limit) {
  std::string out(text.substr(0, limit));
  for (char& c : out) {
    if (c < ' ' || c > '~') c = '?';
  }
  return out;
}

std::string ErrorAnswer::body(std::size_t limit) const {
  const std::string shown = message.size() <= limit ? message : message.substr(0, limit) + "...";
  return R"({"errorMessage":)" + json_string(shown) + R"(,"errorType":)" +
         json_string(std::string_view(type).substr(0, max_type_bytes)) + R"(,"stackTrace":[]})";
}

ErrorAnswer describe_exception() {
  try {
    throw;
  } catch (const FunctionError& error) {
    return {error.type().empty() ? "FunctionError" : error.type(), error.what()};
  } catch (const std::exception& error) {
    const char* const what = error.what();
    return {type_name(&typeid(error)), what == nullptr ? "" : what};
  } catch (...) {
    // Anything can be thrown, also an int: only its type is known.
    std::string type = type_name(abi::__cxa_current_exception_type());
    std::string message = "an exception of type " + type + ", without a message";
    return {std::move(type), std::move(message)};
  }
}

}  // namespace once::lambda::runtime
