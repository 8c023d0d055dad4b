// Any bytes as the event of a queue or a stream.
//
// Besides not crashing: each record's text is a JSON text of its own that says what the event's tree says of it; an
// event is refused whole with the type for that, or every record is run, or reported by its id, or both; and what is
// reported is among what came.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <memory_resource>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <once/engine/engine.hpp>
#include <once/error.hpp>
#include <once/frontends/lambda/batch.hpp>
#include <once/stores/memory.hpp>

#include "frontends/lambda/batch/event_records.hpp"
#include "text/json.hpp"
#include "text/json_write.hpp"

namespace {

namespace json = once::text::json;
constexpr json::Rules lenient{.unique_names = false, .exact_numbers = false, .lone_surrogates = true};

void require(bool condition) {
  if (!condition) std::abort();
}

void taken_apart(std::string_view event) {
  std::pmr::monotonic_buffer_resource arena;
  try {
    for (const once::lambda::EventRecord& record : once::lambda::event_records(event, arena, "anything").records) {
      const json::Value alone = json::parse(record.text, lenient, arena, "the record");
      require(json::written(alone) == json::written(record.lenient));
    }
  } catch (const once::lambda::FunctionError& error) {
    require(error.type() == once::lambda::errors::invalid_event);
  }
}

template <class Batch>
void handled(std::string_view event, const Batch& make) {
  once::Engine engine({.store = once::stores::make_memory_store()});
  std::set<std::string, std::less<>> ids;
  std::set<std::string, std::less<>> reported;
  once::lambda::BatchOptions options;
  options.scope = "f/batch";
  options.parallel = 1;
  options.key_source = once::queues::KeySource::payload;
  options.key = "id";
  options.fingerprint = "amount";
  options.observer = [&](const once::lambda::RecordEvent& record) {
    ids.emplace(record.id);
    if (record.reported) reported.emplace(record.id);
  };
  try {
    const std::string response = make(engine, options)(event, {});
    std::pmr::monotonic_buffer_resource arena;
    const json::Value failures = json::parse(response, lenient, arena, "the response").member("batchItemFailures");
    require(failures.kind() == json::Kind::array && failures.elements().size() == reported.size());
    for (const json::Value& each : failures.elements()) {
      require(reported.contains(each.member("itemIdentifier").text()));
    }
  } catch (const once::lambda::FunctionError& error) {
    require(error.type() == once::lambda::errors::invalid_event && ids.empty());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view event(reinterpret_cast<const char*>(data), size);
  taken_apart(event);
  handled(event, [](once::Engine& engine, const once::lambda::BatchOptions& options) {
    return once::sqs::batch(engine, options, [](const once::sqs::Message& message) {
      if (message.body.size() % 3 == 0) throw once::sqs::PoisonMessage("a third");
    });
  });
  handled(event, [](once::Engine& engine, const once::lambda::BatchOptions& options) {
    return once::streams::batch(engine, options, [](const once::streams::Change& change) {
      if (change.data.size() % 3 == 0) throw std::runtime_error("a third");
    });
  });
  return 0;
}
