// A sealed text after a change by whoever can write to the store, and any bytes as one: it opens as it was sealed, or
// is corrupt or of an unknown key. And any text as a file of keys.
//
// The first byte says how many changes follow: each is two bytes of a place, and one that is xored there. The rest is a
// sealed text of its own, and a file of keys.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include <once/error.hpp>
#include <once/offload.hpp>
#include <once/platform/blocking.hpp>
#include <once/seal.hpp>
#include <once/stores/memory.hpp>

namespace {

using once::Answer;
using once::AnswerStatus;
using once::Record;

void need(bool condition) {
  if (!condition) std::abort();
}

once::SealKeys keys() {
  once::SealKey key{.id = "k1", .bytes = {}};
  key.bytes.fill(1);
  return {key};
}

// Takes what is sealed from the store below, or puts it there.
struct World {
  World() {
    auto memory = once::stores::make_memory_store();
    below = memory.get();
    store = once::seal(std::move(memory), keys());
    record.key = "s#one";
    record.attempt = 1;
    record.revision = once::next_revision(0, 0);
    record.label = "order-17";
    record.input = "input";
    record.steps = {{"first", "1"}};
    record.history.entries = {{.what = "released", .who = "me", .why = "because"}};
    record.result = once::Result::inlined("result", "text/plain");
    need(once::blocking::insert(*store, record).status == AnswerStatus::done);
    sealed = *once::blocking::get(*below, record.key).record;
  }

  void put(const std::string& bytes) const {
    Record changed = sealed;
    changed.result.bytes = bytes;
    need(once::blocking::replace(*below, changed, {changed.owner, changed.revision}).status == AnswerStatus::done);
  }

  once::Store* below = nullptr;
  std::unique_ptr<once::Store> store;
  Record record;
  Record sealed;
};

void check(const World& world, const std::string& bytes) {
  world.put(bytes);
  const Answer answer = once::blocking::get(*world.store, world.record.key);
  if (answer.status == AnswerStatus::failed) {
    need(answer.error.kind == once::ErrorKind::corrupt);
    need(answer.error.message.find("order-17") == std::string::npos);
    need(answer.error.message.size() < 500);
  } else if (once::is_sealed(*answer.record)) {
    need(once::sealed_error(*answer.record).message.size() < 500);
    need(answer.record->result.bytes == bytes);
  } else {
    need(bytes == world.sealed.result.bytes && *answer.record == world.record);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const World world;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  std::string bytes = world.sealed.result.bytes;
  const auto take = [&]() -> std::uint8_t {
    if (rest.empty()) return 0;
    const auto byte = static_cast<std::uint8_t>(rest.front());
    rest.remove_prefix(1);
    return byte;
  };
  for (unsigned changes = take() % 4U; changes > 0; --changes) {
    const std::size_t place = (take() << 8U | take()) % bytes.size();
    bytes[place] = static_cast<char>(static_cast<std::uint8_t>(bytes[place]) ^ take());
  }
  check(world, bytes);
  check(world, std::string(rest));
  check(world, bytes.substr(0, bytes.size() - rest.size() % bytes.size()));
  try {
    for (const once::SealKey& key : once::parse_seal_keys(rest, "keys")) need(once::is_seal_key_id(key.id));
  } catch (const once::Exception& error) {
    need(error.kind() == once::ErrorKind::misuse);
  }
  return 0;
}
