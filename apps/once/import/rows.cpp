#include "import/rows.hpp"

#include <algorithm>
#include <array>
#include <memory_resource>
#include <utility>

#include <once/error.hpp>

#include "output/text.hpp"
#include "text/ascii.hpp"
#include "text/json.hpp"
#include "text/json_write.hpp"

namespace once::cli::importing {

namespace {

namespace json = text::json;

// DynamoDB nests at most 32 levels (https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Constraints.html).
constexpr int max_levels = 32;

[[noreturn]] void not_an_item(const std::string& why) { misuse("it is not an item of DynamoDB: " + why); }

void append_number(std::string& out, std::string_view text, json::Arena& arena) {
  json::Value value;
  const bool is_number =
      json::try_parse(text, {.exact_numbers = false}, arena, value) && value.kind() == json::Kind::number;
  if (!is_number) not_an_item("an N is '" + escaped(text) + "'");
  out += text;
}

void append_plain(std::string& out, const json::Value& typed, json::Arena& arena, int level);

void append_members(std::string& out, const json::Value& map, json::Arena& arena, int level) {
  out += '{';
  for (const json::Member& member : map.members()) {
    if (out.back() != '{') out += ',';
    json::append_quoted(out, member.name);
    out += ':';
    append_plain(out, member.value, arena, level);
  }
  out += '}';
}

void append_plain(std::string& out, const json::Value& typed, json::Arena& arena, int level) {
  if (level > max_levels) not_an_item("it is nested deeper than " + std::to_string(max_levels) + " levels");
  if (typed.kind() != json::Kind::object || typed.members().size() != 1) not_an_item("a value has no type");
  const auto& [type, value] = typed.members().front();
  const auto list = [&](const auto& append) {
    if (value.kind() != json::Kind::array) not_an_item(std::string(type) + " is not a list");
    out += '[';
    for (const json::Value& element : value.elements()) {
      if (out.back() != '[') out += ',';
      append(element);
    }
    out += ']';
  };
  const auto text = [&](const json::Value& of) {
    if (of.kind() != json::Kind::string) not_an_item(std::string(type) + " is not a text");
    return of.text();
  };
  if (type == "S" || type == "B") {
    json::append_quoted(out, text(value));
  } else if (type == "N") {
    append_number(out, text(value), arena);
  } else if (type == "BOOL" && value.kind() == json::Kind::boolean) {
    out += value.truth() ? "true" : "false";
  } else if (type == "NULL") {
    out += "null";
  } else if (type == "M" && value.kind() == json::Kind::object) {
    append_members(out, value, arena, level + 1);
  } else if (type == "L") {
    list([&](const json::Value& element) { append_plain(out, element, arena, level + 1); });
  } else if (type == "SS" || type == "BS") {
    list([&](const json::Value& element) { json::append_quoted(out, text(element)); });
  } else if (type == "NS") {
    list([&](const json::Value& element) { append_number(out, text(element), arena); });
  } else {
    not_an_item("there is no type '" + escaped(type) + "'");
  }
}

// For a message: the scheme alone, because what follows may be a password. So may what has no scheme, as the settings
// "host=db password=..." of libpq.
std::string shown_scheme(std::string_view url) {
  const std::string_view scheme = url.substr(0, url.find(':'));
  const bool is_scheme = scheme.size() < url.size() && std::ranges::all_of(scheme, [](char c) {
                           return text::is_letter_or_digit(c) || c == '+' || c == '-' || c == '.';
                         });
  return is_scheme ? "'" + escaped(scheme) + ":...'" : "no URL";
}

// "csv:FILE" without "csv:". Empty: another scheme.
std::string_view after(std::string_view url, std::string_view scheme) {
  return url.starts_with(scheme) ? url.substr(scheme.size()) : std::string_view();
}

}  // namespace

std::string statement_name(const RowsOptions& options) {
  return options.query.empty() ? " table " + options.table : " query " + options.query;
}

void Finder::refuse_many(const std::string& name) {
  throw Exception(ErrorKind::corrupt, name + " has more than " + std::to_string(max_rows) + " rows for one key");
}

std::vector<Row> Rows::next() {
  if (fault_) std::rethrow_exception(fault_);
  std::vector<Row> rows;
  try {
    read(rows);
  } catch (const Exception&) {
    if (rows.empty()) throw;
    fault_ = std::current_exception();
  }
  return rows;
}

std::vector<std::string> binary_attributes(const json::Value& item) {
  std::vector<std::string> names;
  if (item.kind() != json::Kind::object) return names;
  for (const auto& [name, typed] : item.members()) {
    const bool is_typed = typed.kind() == json::Kind::object && !typed.members().empty();
    if (is_typed && (typed.members().front().name == "B" || typed.members().front().name == "BS")) {
      names.emplace_back(name);
    }
  }
  return names;
}

std::string plain_item(const json::Value& item) {
  if (item.kind() != json::Kind::object) not_an_item("it is not a JSON object");
  std::pmr::monotonic_buffer_resource arena;
  std::string out;
  append_members(out, item, arena, 1);
  return out;
}

std::unique_ptr<Rows> open_rows(const RowsOptions& options) {
  const std::string& from = options.from;
  const bool is_sql = from.starts_with("postgresql:") || from.starts_with("postgres:") || from.starts_with("sqlite:");
  const bool has_statement = !options.table.empty() || !options.query.empty();
  if (!is_sql && has_statement) misuse("--table and --query are for postgresql: and sqlite:, and FROM is neither");
  if (is_sql && options.table.empty() == options.query.empty()) {
    misuse("say which rows to read: --table NAME, or --query 'SELECT ...'");
  }
  constexpr std::array<std::pair<std::string_view, FileForm>, 3> files{
      {{"csv:", FileForm::csv}, {"jsonl:", FileForm::json_lines}, {"dynamodb-export:", FileForm::dynamodb_export}}};
  for (const auto& [scheme, form] : files) {
    if (const auto path = after(from, scheme); !path.empty()) {
      return open_file_rows(form, std::string(path));
    }
  }
  if (const auto path = after(from, "sqlite:"); !path.empty()) return open_sqlite_rows(std::string(path), options);
#if ONCE_POSTGRESQL
  if (is_sql && !from.starts_with("sqlite:")) return open_postgresql_rows(options);
#endif
#if ONCE_AWS
  if (from.starts_with("dynamodb:")) return open_dynamodb_rows(options);
#endif
  misuse("FROM is " + shown_scheme(from) +
         "; use dynamodb://TABLE, postgresql://USER@HOST/DATABASE, sqlite:FILE, csv:FILE, jsonl:FILE or "
         "dynamodb-export:FILE");
}

namespace {

using OpenFinder = std::unique_ptr<Finder> (*)(const FinderOptions&);

OpenFinder finder_for(const FinderOptions& options) {
  const std::string& from = options.rows.from;
  const bool is_sqlite = !after(from, "sqlite:").empty();
  const bool is_postgresql = from.starts_with("postgresql:") || from.starts_with("postgres:");
  const bool is_sql = is_postgresql || is_sqlite;
  if (is_sql && options.rows.table.empty()) misuse("table is missing: write table = \"NAME\", the name of the table");
  if (is_sqlite) return open_sqlite_finder;
#if ONCE_POSTGRESQL
  if (is_postgresql) return open_postgresql_finder;
#endif
#if ONCE_AWS
  if (from.starts_with("dynamodb:")) {
    if (!options.rows.table.empty())
      misuse("table is for postgresql: and sqlite:; leave it out, the URL names the table");
    return open_dynamodb_finder;
  }
#endif
  misuse("from is " + shown_scheme(from) +
         "; a table that can be asked for one key is dynamodb://TABLE, postgresql://USER@HOST/DATABASE or "
         "sqlite:FILE");
}

}  // namespace

void check_finder(const FinderOptions& options) { finder_for(options); }

std::unique_ptr<Finder> open_finder(const FinderOptions& options) { return finder_for(options)(options); }

}  // namespace once::cli::importing
