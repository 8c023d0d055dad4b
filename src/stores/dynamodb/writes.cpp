#include "stores/dynamodb/writes.hpp"

#include <string_view>
#include <utility>
#include <vector>

namespace once::stores::dynamodb {

namespace {

void send(const ServicePtr& service, Write write, int tries);

// The store's own check is stricter, so the service has changed its limit. It says "Item size has exceeded the maximum
// allowed size", and "Item size to update ..." (API reference, TransactWriteItems).
bool is_too_large(std::string_view message) { return message.find("Item size") != std::string_view::npos; }

// The condition did not hold, but the answer has no item: read it.
void look_for_item(const ServicePtr& service, Write write, int tries) {
  const auto primary_key = service->format().primary_key(write.key);
  if (const Error* error = std::get_if<Error>(&primary_key)) return fail(service, write.done, *error);
  read_item(service, std::get<Item>(primary_key),
            [service, tries, write = std::move(write)](Outcome outcome, std::optional<StoreTime> time) mutable {
              if (outcome.error) return fail(service, write.done, *std::move(outcome.error));
              if (outcome.answer.item || !write.is_insert) {
                return give(service, write.done, AnswerStatus::refused, write.key, outcome.answer.item, time);
              }
              // It was removed meanwhile, so the insert may succeed now.
              constexpr int most_tries = 10;
              if (tries == most_tries) {
                return fail(service, write.done, {ErrorKind::unavailable, "the record in the way keeps changing"});
              }
              send(service, std::move(write), tries + 1);
            });
}

void send(const ServicePtr& service, Write write, int tries) {
  std::string body = write.is_insert ? write.body : std::move(write.body);
  const std::string_view operation = write.operation;
  service->call(service, operation, std::move(body), Access::write, false,
                [service, tries, write = std::move(write)](Outcome outcome, std::optional<StoreTime> time) mutable {
                  if (outcome.error) {
                    const bool too_large =
                        outcome.answer.error_type == "ValidationException" && is_too_large(outcome.answer.message);
                    return (too_large ? cannot_keep : fail)(service, write.done, *std::move(outcome.error));
                  }
                  if (!outcome.condition_failed) {
                    return give(service, write.done, AnswerStatus::done, write.key, std::nullopt, time);
                  }
                  if (outcome.answer.item) {
                    if (write.is_insert) service->met(*outcome.answer.item);
                    return give(service, write.done, AnswerStatus::refused, write.key, outcome.answer.item, time);
                  }
                  if (service->options().consistent_fallback) return look_for_item(service, std::move(write), tries);
                  if (write.is_insert) {
                    return fail(service, write.done,
                                {ErrorKind::misuse,
                                 "the endpoint does not return the record in the way "
                                 "(ReturnValuesOnConditionCheckFailure): turn consistent_fallback on"});
                  }
                  give(service, write.done, AnswerStatus::refused, write.key, std::nullopt, time);
                });
}

// The user's writes were refused. The answer may not show whether the record was refused too, because the service does
// not promise to check every condition. So the record is read: a lost claim must not be reported as a declined write,
// nor an earlier success as a failure.
void decline(const ServicePtr& service, Transaction transaction, Error why) {
  const auto primary_key = service->format().primary_key(transaction.key);
  if (const Error* error = std::get_if<Error>(&primary_key)) return fail(service, transaction.done, *error);
  read_item(service, std::get<Item>(primary_key),
            [service, why = std::move(why), transaction = std::move(transaction)](
                Outcome outcome, std::optional<StoreTime> time) mutable {
              if (outcome.error) {
                return fail(service, transaction.done,
                            {ErrorKind::unavailable,
                             why.message + "; and then the record could not be read: " + outcome.error->message});
              }
              std::optional<Item>& item = outcome.answer.item;
              if (item) {
                const auto record = service->format().decode(*item);
                const Record* found = std::get_if<Record>(&record);
                if (found != nullptr && found->owner == transaction.seen.owner &&
                    found->revision == transaction.seen.revision) {
                  why = service->named(std::move(why));
                  return service->complete(transaction.done, Answer::decline(why.kind, std::move(why.message)));
                }
              }
              give(service, transaction.done, AnswerStatus::refused, transaction.key, item, time);
            });
}

// Nothing was written: because of the record, which comes first, or of one of the writes after it.
void end_cancelled(const ServicePtr& service, Transaction transaction, ServiceAnswer answer,
                   std::optional<StoreTime> time) {
  using Reason = ServiceAnswer::Reason;
  const auto passes = [](const Reason& reason) {
    return reason.code == "TransactionConflict" || reason.code == "ProvisionedThroughputExceeded" ||
           reason.code == "ThrottlingError";
  };
  const auto said = [](const Reason& reason) {
    return reason.message.empty() ? reason.code : reason.code + ": " + reason.message;
  };
  std::vector<Reason>& reasons = answer.reasons;
  if (reasons.size() != transaction.items->size() + 1) {
    return decline(service, std::move(transaction), {ErrorKind::misuse, answer.error_type + ": " + answer.message});
  }
  const Reason& own = reasons.front();
  if (own.code == "ConditionalCheckFailed") {
    if (own.item || !service->options().consistent_fallback) {
      return give(service, transaction.done, AnswerStatus::refused, transaction.key, own.item, time);
    }
    return look_for_item(service,
                         {.operation = {}, .body = {}, .key = transaction.key, .done = std::move(transaction.done)}, 0);
  }
  if (own.code != "None") {
    if (own.code == "ValidationError" && is_too_large(own.message)) {
      return cannot_keep(service, transaction.done, {ErrorKind::misuse, "the record: " + said(own)});
    }
    return fail(service, transaction.done,
                {passes(own) ? ErrorKind::unavailable : ErrorKind::misuse, "the record: " + said(own)});
  }
  const Reason* passing = nullptr;
  for (std::size_t i = 1; i < reasons.size(); ++i) {
    const Reason& reason = reasons[i];
    if (reason.code == "None") continue;
    if (passes(reason)) {
      passing = &reason;
      continue;
    }
    // A condition may hold later; all other reasons are faults of the write.
    const ErrorKind kind = reason.code == "ConditionalCheckFailed" ? ErrorKind::unavailable : ErrorKind::misuse;
    Error why{kind, transaction.items->name(i - 1) + ": " + said(reason)};
    return decline(service, std::move(transaction), std::move(why));
  }
  fail(service, transaction.done,
       {ErrorKind::unavailable, passing == nullptr ? answer.error_type + ": " + answer.message : said(*passing)});
}

void send_looking_first(const ServicePtr& service, Write write) {
  if (!write.is_insert || !service->reads_first()) return send(service, std::move(write), 0);
  const auto primary_key = service->format().primary_key(write.key);
  if (const Error* error = std::get_if<Error>(&primary_key)) return fail(service, write.done, *error);
  read_item(service, std::get<Item>(primary_key),
            [service, write = std::move(write)](Outcome outcome, std::optional<StoreTime> time) mutable {
              if (outcome.error) return fail(service, write.done, *std::move(outcome.error));
              if (!outcome.answer.item) return send(service, std::move(write), 0);
              service->met(*outcome.answer.item);
              give(service, write.done, AnswerStatus::refused, write.key, outcome.answer.item, time);
            });
}

}  // namespace

// An insert claims a key. So before the first one the store asks whether another region could claim it too. Where the
// table may not be described, that is not known.
void send(const ServicePtr& service, Write write) {
  if (!write.is_insert || service->knows_replicas()) return send_looking_first(service, std::move(write));
  service->describe(service, [service, write = std::move(write)](const Outcome& outcome) mutable {
    const auto& table = outcome.answer.table;
    if (table && !table->eventual.empty()) {
      return fail(service, write.done,
                  {ErrorKind::misuse, "the table is " + table->eventual + std::string(eventual_advice)});
    }
    send_looking_first(service, std::move(write));
  });
}

void append_write_condition(std::string& body, const Condition& condition) {
  append_conditions(body, {{"ConditionExpression", &condition}});
  body += ",\"ReturnValuesOnConditionCheckFailure\":\"ALL_OLD\"";
}

void transact(const ServicePtr& service, Transaction transaction) {
  std::string body = std::move(transaction.body);
  service->call(
      service, "TransactWriteItems", std::move(body), Access::write, false,
      [service, transaction = std::move(transaction)](Outcome outcome, std::optional<StoreTime> time) mutable {
        if (outcome.cancelled) {
          return end_cancelled(service, std::move(transaction), std::move(outcome.answer), time);
        }
        if (!outcome.error) {
          return give(service, transaction.done, AnswerStatus::done, transaction.key, std::nullopt, time);
        }
        // The record alone could be inserted, so the reason is the companion.
        if (outcome.error->kind == ErrorKind::misuse) {
          return decline(service, std::move(transaction), *std::move(outcome.error));
        }
        fail(service, transaction.done, *std::move(outcome.error));
      });
}

}  // namespace once::stores::dynamodb
