// The writes of the store: a record under its condition, alone or with the user's writes.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <once/stores/dynamodb_transaction.hpp>

#include "stores/dynamodb/service.hpp"

namespace once::stores::dynamodb {

// PutItem or DeleteItem.
struct Write {
  std::string_view operation;
  std::string body;  // Without the closing brace.
  std::string key;
  bool is_insert = false;
  Done done;
};

void send(const ServicePtr& service, Write write);

// The condition of a write, and that a refusal returns the item.
void append_write_condition(std::string& body, const Condition& condition);

// TransactWriteItems of a record and the user's own writes.
struct Transaction {
  std::string body;  // Without the closing brace.
  std::string key;
  Seen seen;
  std::shared_ptr<const Companion> companion;  // `items` is a part of it.
  const TransactItems* items = nullptr;
  Done done;
};

void transact(const ServicePtr& service, Transaction transaction);

}  // namespace once::stores::dynamodb
