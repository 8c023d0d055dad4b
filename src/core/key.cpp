#include <once/key.hpp>

#include <algorithm>
#include <utility>

#include <once/error.hpp>
#include <once/fingerprint.hpp>

namespace once {

namespace {

void check_size(std::size_t bytes) {
  if (bytes <= max_key_bytes) return;
  throw Exception(ErrorKind::misuse, "the key is " + std::to_string(bytes) + " bytes long with its scope; at most " +
                                         std::to_string(max_key_bytes) + " are allowed: use a digest of it instead");
}

}  // namespace

std::string scope_prefix(std::string_view scope) {
  std::string out;
  while (true) {
    const std::size_t special = std::min(scope.find('%'), scope.find('#'));  // npos is the largest value.
    out += scope.substr(0, special);
    if (special == std::string_view::npos) break;
    out += scope[special] == '%' ? "%25" : "%23";
    scope.remove_prefix(special + 1);
  }
  out += '#';
  return out;
}

Key::Key(std::string_view scope, std::string_view name) {
  if (name.empty()) throw Exception(ErrorKind::misuse, "the key is empty");
  check_size(scope.size() + 1 + name.size());  // Checked before anything is copied.
  *this = KeyScope(scope).key(name);
}

KeyScope::KeyScope(std::string_view scope) : prefix_(scope_prefix(scope)) {}

Key KeyScope::key(std::string_view name) const {
  if (name.empty()) throw Exception(ErrorKind::misuse, "the key is empty");
  check_size(prefix_.size() + name.size());
  Key key;
  key.stored_.reserve(prefix_.size() + name.size());
  key.stored_.append(prefix_).append(name);
  return key;
}

Key Key::from_stored(std::string_view stored) {
  check_size(stored.size());
  const auto end = stored.find('#');
  if (end == std::string_view::npos || end + 1 == stored.size()) {
    throw Exception(ErrorKind::misuse, "not a stored key: expected <scope>#<name>");
  }
  Key key;
  key.stored_ = stored;
  return key;
}

std::string Key::scope() const {
  std::string out;
  const std::string_view escaped = std::string_view(stored_).substr(0, stored_.find('#'));
  for (std::size_t i = 0; i < escaped.size(); ++i) {
    const std::string_view rest = escaped.substr(i, 3);
    if (rest == "%25" || rest == "%23") {
      out += rest == "%25" ? '%' : '#';
      i += 2;
    } else {
      out += escaped[i];
    }
  }
  return out;
}

std::string_view Key::name() const { return std::string_view(stored_).substr(stored_.find('#') + 1); }

std::string key_hash(std::string_view stored) {
  constexpr std::size_t digits = 16;
  return stored.empty() ? std::string() : to_hex(sha256(stored)).substr(0, digits);
}

}  // namespace once
