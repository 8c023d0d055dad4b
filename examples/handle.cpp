// The handle: for code that cannot be wrapped in a function, because it starts in one place and ends in another.
#include <cstdio>
#include <string>

#include <once/engine/engine.hpp>
#include <once/stores/open.hpp>

// [handle]
static void deliver(once::Engine& engine, const std::string& message_id, const std::string& body) {
  once::Begin begin = engine.begin(message_id, body);
  switch (begin.kind) {
    case once::Begin::Kind::claimed:
      std::printf("%s: working on it\n", message_id.c_str());
      // The holder of the claim finishes it: complete, fail, release or hold. A forgotten claim lapses with its lease.
      if (body.empty()) {
        begin.claim.fail({.code = "empty", .message = "there is nothing to deliver"});
      } else {
        begin.claim.complete(once::Result::inlined("delivered " + body));
      }
      return;
    case once::Begin::Kind::replayed:
      std::printf("%s: %s before\n", message_id.c_str(), begin.record->result.bytes.c_str());
      return;
    case once::Begin::Kind::stored_failure:
      std::printf("%s: failed before, %s\n", message_id.c_str(), begin.record->failure.message.c_str());
      return;
    case once::Begin::Kind::conflict:
      std::printf("%s: %s is at it, ask again in %lld ms\n", message_id.c_str(), begin.record->holder.c_str(),
                  static_cast<long long>(begin.retry_after.count()));
      return;
    case once::Begin::Kind::mismatch:
      std::printf("%s: was used for another message\n", message_id.c_str());
      return;
    case once::Begin::Kind::unknown:
      std::printf("%s: its outcome is unknown, an operator decides\n", message_id.c_str());
      return;
    case once::Begin::Kind::error:
      std::printf("%s: %s\n", message_id.c_str(), begin.error.message.c_str());
      return;
  }
}
// [/handle]

int main() {
  once::Engine engine({.store = once::open_store("sqlite:messages.db"), .scope = "deliver"});
  deliver(engine, "m-1", "hello");
  deliver(engine, "m-1", "hello");
  deliver(engine, "m-1", "something else");
  deliver(engine, "m-2", "");
  deliver(engine, "m-2", "");
}
