#include "settings/read_input.hpp"

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include <once/error.hpp>

#include "output/text.hpp"

namespace once::cli {

namespace {

struct CloseInput {
  void operator()(std::FILE* file) const noexcept { std::fclose(file); }
};

}  // namespace

std::string read_input(const std::string& name, std::size_t limit) {
  std::unique_ptr<std::FILE, CloseInput> opened;
  std::FILE* file = stdin;
  if (name != "-") {
    opened.reset(std::fopen(name.c_str(), "rbe"));
    file = opened.get();
  }
  std::string text;
  std::array<char, 65536> part{};
  std::size_t length = 0;
  while (file != nullptr && text.size() <= limit && (length = std::fread(part.data(), 1, part.size(), file)) > 0) {
    text.append(part.data(), length);
  }
  if (file == nullptr || std::ferror(file) != 0) {
    throw Exception(ErrorKind::misuse, "cannot read " + (name == "-" ? "standard input" : "'" + escaped(name) + "'") +
                                           ": " + std::strerror(errno));
  }
  return text;
}

}  // namespace once::cli
