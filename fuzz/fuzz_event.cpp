// Any bytes as an event, under every dialect's rules.
//
// Checks, besides no crash: an accepted text has a canonical form that is accepted, is its own canonical form, and
// gives the same key. Refused texts are misuse.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <once/error.hpp>
#include <once/keys/key_deriver.hpp>
#include <string>
#include <string_view>

namespace {

using once::keys::Derived;
using once::keys::Dialect;
using once::keys::KeyDeriver;

void require(bool condition) {
  if (!condition) std::abort();
}

template <class Body>
bool accepted(const Body& body) {
  try {
    body();
    return true;
  } catch (const once::Exception& error) {
    require(error.kind() == once::ErrorKind::misuse);
    return false;
  }
}

void native(std::string_view event) {
  static const KeyDeriver deriver({.scope = "s"});
  std::string text;
  if (!accepted([&] { text = once::keys::canonical_text(event); })) {
    require(!accepted([&] { static_cast<void>(deriver.derive(event)); }));
    return;
  }
  require(once::keys::canonical_text(text) == text);
  const Derived one = deriver.derive(event);
  const Derived other = deriver.derive(text);
  require(one.key == other.key && (!one.key || one.key_text == text));
}

void dialect(const KeyDeriver& deriver, std::string_view event) {
  accepted([&] { require(deriver.derive(event).key == deriver.derive(event).key); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view event(reinterpret_cast<const char*>(data), size);
  native(event);
  static const KeyDeriver python({.scope = "s", .fingerprint = "@", .dialect = Dialect::powertools_python});
  static const KeyDeriver typescript({.scope = "s", .fingerprint = "@", .dialect = Dialect::powertools_typescript});
  static const KeyDeriver java({.scope = "s", .fingerprint = "@", .dialect = Dialect::powertools_java});
  static const KeyDeriver dotnet({.scope = "s", .fingerprint = "b.c", .dialect = Dialect::powertools_dotnet});
  for (const KeyDeriver* deriver : {&python, &typescript, &java, &dotnet}) dialect(*deriver, event);
  return 0;
}
