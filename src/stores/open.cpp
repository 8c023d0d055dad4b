#include <once/stores/open.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include <once/error.hpp>
#include <once/stores/memory.hpp>
#include <once/stores/sqlite.hpp>

#include "stores/url.hpp"

namespace once {

namespace {

using stores::Url;

[[noreturn]] void refuse(const Url& url, const std::string& what) {
  throw Exception(ErrorKind::misuse, "store URL '" + url.text() + "': " + what);
}

std::unique_ptr<Store> open_memory(Url& url) {
  url.refuse_rest("");
  if (!url.path().empty()) refuse(url, "memory: has no path");
  return stores::make_memory_store();
}

std::unique_ptr<Store> open_sqlite(Url& url) {
  stores::SqliteOptions options;
  options.path = url.path();
  options.create = url.take_flag("create").value_or(options.create);
  options.create_directories = url.take_flag("create_directories").value_or(options.create_directories);
  options.busy_timeout = url.take_duration("busy_timeout").value_or(options.busy_timeout);
  if (const auto pages = url.take_number("checkpoint_pages")) {
    // Beyond the range of the option: any value that is refused there.
    options.checkpoint_pages =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(*pages, std::numeric_limits<std::uint32_t>::max()));
  }
  url.refuse_rest("create, create_directories, busy_timeout, checkpoint_pages");
  if (options.path.empty()) refuse(url, "the path of the file is missing, as in sqlite:/var/lib/once/once.db");
  if (options.path.starts_with("//")) refuse(url, "write one slash: sqlite:/path/to/file.db");
  return stores::make_sqlite_store(std::move(options));
}

struct Scheme {
  std::string_view name;
  std::unique_ptr<Store> (*open)(Url& url);  // Takes the parameters it knows and refuses the rest.
};

// A new store is a line here, and its component in CMakeLists.txt.
constexpr std::array<Scheme, 2> schemes{{
    {"memory", open_memory},
    {"sqlite", open_sqlite},
}};

}  // namespace

std::unique_ptr<Store> open_store(std::string_view text) {
  Url url(text);
  for (const Scheme& scheme : schemes) {
    if (scheme.name == url.scheme()) return scheme.open(url);
  }
  refuse(url, "unknown scheme '" + url.scheme() + "'; this build knows " + known_store_schemes());
}

std::string known_store_schemes() {
  std::string out;
  for (const Scheme& scheme : schemes) {
    if (!out.empty()) out += ", ";
    out += std::string(scheme.name) + ":";
  }
  return out;
}

std::string escape_url(std::string_view text) {
  constexpr std::string_view digits = "0123456789ABCDEF";
  constexpr std::string_view special = "%?#&";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte > 0x20 && byte < 0x7F && special.find(c) == std::string_view::npos) {
      out += c;
    } else {
      out += '%';
      out += digits[byte >> 4U];
      out += digits[byte & 15U];
    }
  }
  return out;
}

}  // namespace once
