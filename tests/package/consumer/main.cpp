// The least that a user of the library writes: a store, a key, a look.
#include <cstdio>
#include <string>

#include <once/key.hpp>
#include <once/platform/blocking.hpp>
#include <once/stores/memory.hpp>

int main() {
  const auto store = once::stores::make_memory_store();
  const once::Key key("payments/charge", "order-17");
  const once::Answer answer = once::blocking::get(*store, key.stored());
  std::printf("%s: %s\n", store->name().c_str(), answer.record ? "there" : "nothing there");
  return answer.status == once::Answer::Status::done && !answer.record ? 0 : 1;
}
