// Any bytes as a recipe and an event: the first byte chooses the dialect, a NUL parts the expression from the event.
//
// Besides not crashing: an expression that is refused is refused as misuse, deriving twice gives the same, and under
// native rules what was hashed is the canonical form of itself.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <once/error.hpp>
#include <once/keys/key_deriver.hpp>
#include <string>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using once::keys::Dialect;
  const auto require = [](bool condition) {
    if (!condition) std::abort();
  };
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const auto parting = input.find('\0', 1);
  if (parting == std::string_view::npos) return 0;
  const auto dialect = static_cast<Dialect>(static_cast<unsigned char>(input[0]) % 5);
  const std::string_view expression = input.substr(1, parting - 1);
  const std::string_view event = input.substr(parting + 1);
  try {
    const once::keys::KeyDeriver deriver(
        {.scope = "s", .expression = std::string(expression), .fingerprint = "@", .dialect = dialect});
    const auto one = deriver.derive(event);
    const auto other = deriver.derive(event);
    require(one.key == other.key && one.fingerprint == other.fingerprint && one.key_text == other.key_text);
    if (dialect == Dialect::native && one.key) require(once::keys::canonical_text(one.key_text) == one.key_text);
  } catch (const once::Exception& error) {
    require(error.kind() == once::ErrorKind::misuse);
  }
  return 0;
}
