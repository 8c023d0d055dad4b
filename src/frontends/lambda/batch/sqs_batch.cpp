#include <memory>
#include <memory_resource>

#include <once/error.hpp>
#include <once/frontends/lambda/batch.hpp>

#include "frontends/lambda/batch/batch_run.hpp"
#include "frontends/lambda/batch/event_records.hpp"
#include "frontends/lambda/metrics/invocation_span.hpp"
#include "queues/message.hpp"

namespace once::sqs {

namespace {

constexpr std::string_view sqs_service = "SQS messages";

}  // namespace

lambda::Handler batch_of(Engine& engine, BatchOptions options, MessageWork work) {
  struct Maker {
    lambda::Batch batch;
    MessageWork work;
  };
  check_key(options.key_source, options.key);
  // One for all copies of the handler.
  const auto maker = std::make_shared<const Maker>(Maker{lambda::Batch(engine, std::move(options)), std::move(work)});
  if (maker->batch.holds()) check_hold(maker->batch.options().key_source, maker->batch.options().key);
  return [maker](std::string_view event, const lambda::Invocation& invocation) {
    const lambda::InvocationSpan span(invocation);
    std::pmr::monotonic_buffer_resource arena;
    const std::vector<lambda::EventRecord> records = lambda::event_records(event, arena, sqs_service).records;
    std::vector<Message> messages(records.size());
    std::vector<lambda::BatchItem> items(records.size());
    for (std::size_t i = 0; i < records.size(); ++i) {
      const auto& [text, tree] = records[i];
      if (tree.member("eventSource").string_or_empty() != "aws:sqs" ||
          tree.member("messageId").string_or_empty().empty()) {
        lambda::refuse_batch(sqs_service, "record " + std::to_string(i) +
                                              R"( of the event must have "eventSource":"aws:sqs" and a messageId)");
      }
      lambda::BatchItem& item = items[i];
      item.id = tree.member("messageId").string_or_empty();
      item.name = item.id;
      item.json = text;
      const bool fifo = tree.member("eventSourceARN").string_or_empty().ends_with(".fifo");
      const bool deduplicates = maker->batch.options().key_source == KeySource::deduplication_id;
      if (deduplicates && !fifo) {
        lambda::refuse_batch(sqs_service, "KeySource::deduplication_id needs a FIFO queue, and this is '" +
                                              std::string(tree.member("eventSourceARN").string_or_empty()) + "'");
      }
      if (fifo) item.order = "g" + std::string(tree.member("attributes").member("MessageGroupId").string_or_empty());
      try {
        messages[i] = read_message(text);
      } catch (const Exception& error) {
        item.poison = error.what();
        continue;
      }
      maker->batch.take_key(item, deduplicates ? deduplication_name(messages[i]) : item.name, text, messages[i].body,
                            payload_elsewhere(messages[i]));
      item.trace = messages[i].trace();
      item.work = [&work = maker->work, &message = messages[i]](Context& context) { return work(message, context); };
    }
    return maker->batch.run(std::move(items), invocation);
  };
}

}  // namespace once::sqs
