#include "settings/read_input.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "output/text.hpp"
#include "platform/file.hpp"

namespace once::cli {

int read_input(const std::string& name, std::size_t limit, std::string& text) {
  return name == "-" ? read_all(STDIN_FILENO, limit, text) : read_file(name, limit, text);
}

std::string read_input(const std::string& name, std::size_t limit) {
  std::string text;
  const int error = read_input(name, limit, text);
  if (error != 0 && error != EFBIG) {
    misuse("cannot read " + (name == "-" ? "standard input" : "'" + escaped(name) + "'") + ": " + std::strerror(error));
  }
  return text;
}

}  // namespace once::cli
