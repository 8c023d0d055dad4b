#include "frontends/http/target.hpp"

namespace once::http {

std::string_view path_of(std::string_view target) noexcept {
  if (!target.starts_with('/')) {
    const auto scheme = target.find("://");
    if (scheme != std::string_view::npos) {
      const auto path = target.find_first_of("/?#", scheme + 3);
      target = path == std::string_view::npos || target[path] != '/' ? std::string_view("/") : target.substr(path);
    }
  }
  return target.substr(0, target.find_first_of("?#"));
}

std::string_view query_of(std::string_view target) noexcept {
  const auto query = target.find('?');
  return query == std::string_view::npos ? std::string_view() : target.substr(query);
}

std::string_view authority_of(std::string_view target) noexcept {
  const auto scheme = target.find("://");
  if (target.starts_with('/') || scheme == std::string_view::npos) return {};
  target.remove_prefix(scheme + 3);
  return target.substr(0, target.find_first_of("/?#"));
}

}  // namespace once::http
