// The files of the folder console/, which are in the program.
#pragma once

#include <span>
#include <string_view>

namespace once::operators {

struct ConsoleFile {
  std::string_view name;  // "index.html", "vendor/preact.js"
  std::string_view bytes;
};
std::span<const ConsoleFile> console_files();

}  // namespace once::operators
