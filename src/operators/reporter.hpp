// What is reported while the API works goes to the program, which prints it: a library never prints.
#pragma once

#include <functional>
#include <string_view>

#include <once/engine/log.hpp>

namespace once::operators {

using Reporter = std::function<void(std::string_view text, LogLevel level)>;

// From now on `reporter` is called, by any thread, by several at once. Call this while no other thread may report
// anything. Without it nothing is reported.
void set_reporter(Reporter reporter);

void report(std::string_view text, LogLevel level = LogLevel::notice);

}  // namespace once::operators
