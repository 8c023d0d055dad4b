// The C++ side of cross_test.py: carries out commands on one table, one JSON object per line.
//
//   driver TABLE OPTIONS      OPTIONS: {"dialect": "powertools-python", "sort_key": "", "partition_value": "",
//                             "attributes": {"status": "st", ...}, "scope": "my-func.app.handler", "expression": "",
//                             "validation": "", "lease_ms": 30000, "retention_ms": 3600000}
//
//   {"do": "begin", "event": ...}        -> {"kind": "claimed" | "replayed" | "conflict" | ..., "result": ..., "id":
//   ...}
//   {"do": "complete", "result": ...}    -> {"kind": "recorded" | "superseded" | "lost" | "unrecorded", "result": ...}
//   {"do": "complete", "text": "..."}       the same with a result that is no JSON
//   {"do": "release"}
//   {"do": "heartbeat"}                  -> {}
//
// complete, release and heartbeat are about the last claim. Where the store is comes from the environment.
#include <array>
#include <iostream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include <once/engine/engine.hpp>
#include <once/error.hpp>
#include <once/keys/key_deriver.hpp>
#include <once/stores/dynamodb.hpp>

namespace {

using nlohmann::json;

once::stores::DynamoDbDialect store_dialect(once::keys::Dialect dialect) {
  switch (dialect) {
    case once::keys::Dialect::powertools_python:
      return once::stores::DynamoDbDialect::powertools_python;
    case once::keys::Dialect::powertools_typescript:
      return once::stores::DynamoDbDialect::powertools_typescript;
    case once::keys::Dialect::powertools_java:
      return once::stores::DynamoDbDialect::powertools_java;
    case once::keys::Dialect::powertools_dotnet:
      return once::stores::DynamoDbDialect::powertools_dotnet;
    case once::keys::Dialect::native:
      break;
  }
  return once::stores::DynamoDbDialect::native;
}

std::shared_ptr<once::Store> open(const std::string& table, const json& options, once::keys::Dialect dialect) {
  once::stores::DynamoDbOptions out;
  out.table = table;
  out.dialect = store_dialect(dialect);
  out.partition_key = options.value("partition_key", out.partition_key);
  out.sort_key = options.value("sort_key", "");
  out.partition_value = options.value("partition_value", "");
  const json names = options.value("attributes", json::object());
  auto& attributes = out.attributes;
  attributes.status = names.value("status", attributes.status);
  attributes.expiration = names.value("expiration", attributes.expiration);
  attributes.in_progress_expiration = names.value("in_progress_expiration", attributes.in_progress_expiration);
  attributes.data = names.value("data", attributes.data);
  attributes.validation = names.value("validation", attributes.validation);
  return once::stores::make_dynamodb_store(std::move(out));
}

const char* to_string(once::Begin::Kind kind) {
  constexpr std::array names{"claimed", "replayed", "failed", "conflict", "mismatch", "unknown", "error"};
  return names.at(static_cast<std::size_t>(kind));
}

const char* to_string(once::Finish::Kind kind) {
  constexpr std::array names{"recorded", "superseded", "lost", "unrecorded", "declined"};
  return names.at(static_cast<std::size_t>(kind));
}

json result_of(const std::shared_ptr<const once::Record>& record) {
  if (!record || record->state != once::State::completed) return nullptr;
  if (record->result.placement != once::Placement::inlined) return "(not kept)";
  return record->result.bytes.empty() ? json("(nothing)") : json::parse(record->result.bytes);
}

json told(once::Finish finish) {
  return {{"kind", to_string(finish.kind)}, {"result", result_of(finish.record)}, {"error", finish.error.message}};
}

class Driver {
 public:
  Driver(const std::string& table, const json& options)
      : dialect_(once::keys::dialect_from(options.at("dialect").get<std::string>()).value()),
        deriver_({.scope = options.at("scope"),
                  .expression = options.value("expression", ""),
                  .fingerprint = options.value("validation", ""),
                  .dialect = dialect_}),
        engine_({.store = open(table, options, dialect_),
                 .policy = {.lease = once::Millis(options.value("lease_ms", 30'000)),
                            .retention = once::Millis(options.value("retention_ms", 3'600'000)),
                            .skew = once::Millis(0),
                            .on_conflict = once::OnConflict::fail,
                            .heartbeat = false},
                 .observer = [this](const once::Event& event) {
                   if (event.error == nullptr) return;
                   const std::lock_guard lock(mutex_);
                   last_error_ = event.error->message;
                 }}) {}

  json command(const json& line) {
    const std::string what = line.at("do");
    json answer;
    if (what == "key") {
      answer["key"] = deriver_.derive(line.at("event").dump()).key.value().stored();
    } else if (what == "begin") {
      const auto derived = deriver_.derive(line.at("event").dump());
      once::Begin begin = engine_.begin({.key = derived.key.value(), .fingerprint = derived.fingerprint});
      answer = {{"kind", to_string(begin.kind)},
                {"result", result_of(begin.record)},
                {"attempt", begin.claim ? begin.claim.attempt() : 0},
                {"error", begin.error.message}};
      if (begin.claim) claim_ = std::move(begin.claim);
    } else if (what == "complete") {
      once::Result result;
      if (line.contains("text")) {
        result = once::Result::inlined(line.at("text"), "text/plain");
      } else if (line.contains("result")) {
        result = once::Result::inlined(line.at("result").dump(), "application/json");
      }
      answer = told(claim_.complete(std::move(result)));
    } else if (what == "release") {
      answer = told(claim_.release());
    } else if (what == "heartbeat") {
      claim_.heartbeat();
      answer = json::object();
    } else {
      throw once::Exception(once::ErrorKind::misuse, "unknown command " + what);
    }
    const std::lock_guard lock(mutex_);
    if (!last_error_.empty()) answer["last_error"] = std::exchange(last_error_, {});
    return answer;
  }

 private:
  std::mutex mutex_;
  std::string last_error_;
  const once::keys::Dialect dialect_;
  once::keys::KeyDeriver deriver_;
  once::Engine engine_;
  once::Claim claim_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: driver TABLE OPTIONS\n";
    return 2;
  }
  try {
    Driver driver(argv[1], json::parse(argv[2]));
    for (std::string line; std::getline(std::cin, line);) {
      std::cout << driver.command(json::parse(line)).dump() << std::endl;
    }
  } catch (const std::exception& error) {
    std::cerr << "driver: " << error.what() << '\n';
    return 1;
  }
}
