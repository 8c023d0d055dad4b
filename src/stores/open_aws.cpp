#include "stores/open_aws.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include <once/offload/s3.hpp>
#include <once/stores/dynamodb.hpp>

namespace once::stores {

namespace {

using Attributes = DynamoDbAttributes;

// The part of a parameter's name after "attribute.".
constexpr std::array<std::pair<std::string_view, std::string Attributes::*>, 33> attributes_by_name{{
    {"status", &Attributes::status},
    {"owner", &Attributes::owner},
    {"token", &Attributes::token},
    {"attempt", &Attributes::attempt},
    {"revision", &Attributes::revision},
    {"lease_until", &Attributes::lease_until},
    {"expiration", &Attributes::expiration},
    {"expires_at", &Attributes::expires_at},
    {"created_at", &Attributes::created_at},
    {"finished_at", &Attributes::finished_at},
    {"fingerprint", &Attributes::fingerprint},
    {"holder", &Attributes::holder},
    {"note", &Attributes::note},
    {"steps", &Attributes::steps},
    {"data", &Attributes::data},
    {"content_type", &Attributes::content_type},
    {"placement", &Attributes::placement},
    {"location", &Attributes::location},
    {"data_bytes", &Attributes::data_bytes},
    {"data_sha256", &Attributes::data_sha256},
    {"error_code", &Attributes::error_code},
    {"error_message", &Attributes::error_message},
    {"on_lapse", &Attributes::on_lapse},
    {"expected_until", &Attributes::expected_until},
    {"label", &Attributes::label},
    {"history", &Attributes::history},
    {"input", &Attributes::input},
    {"input_bytes", &Attributes::input_bytes},
    {"key", &Attributes::key},
    {"open", &Attributes::open},
    {"in_progress_expiration", &Attributes::in_progress_expiration},
    {"validation", &Attributes::validation},
    {"result", &Attributes::result},
}};

constexpr std::array<std::pair<std::string_view, DynamoDbDialect>, 5> dialects{{
    {"native", DynamoDbDialect::native},
    {"powertools-python", DynamoDbDialect::powertools_python},
    {"powertools-typescript", DynamoDbDialect::powertools_typescript},
    {"powertools-java", DynamoDbDialect::powertools_java},
    {"powertools-dotnet", DynamoDbDialect::powertools_dotnet},
}};

using UseIndex = DynamoDbOptions::UseIndex;
constexpr std::array<std::pair<std::string_view, UseIndex>, 3> index_uses{{
    {"if_there", UseIndex::if_there},
    {"always", UseIndex::always},
    {"never", UseIndex::never},
}};

// One word of several.
template <class Value, std::size_t n>
Value take_word(Url& url, std::string_view name, const std::array<std::pair<std::string_view, Value>, n>& words,
                Value if_missing) {
  const auto word = url.take_text(name);
  if (!word) return if_missing;
  std::string known;
  for (const auto& [text, value] : words) {
    if (text == *word) return value;
    if (!known.empty()) known += ", ";
    known += text;
  }
  url.refuse("the parameter '" + std::string(name) + "' must be one of " + known + ", not '" + *word + "'");
}

DynamoDbOptions take_dynamodb(Url& url) {
  DynamoDbOptions o;
  const auto text = [&](std::string_view name, std::string& option) {
    if (auto value = url.take_text(name)) option = *std::move(value);
  };
  text("region", o.region);
  text("endpoint", o.endpoint);
  text("profile", o.profile);
  text("ca_file", o.ca_file);
  o.request_timeout = url.take_duration("request_timeout").value_or(o.request_timeout);
  o.operation_timeout = url.take_duration("operation_timeout").value_or(o.operation_timeout);
  o.dialect = take_word(url, "dialect", dialects, o.dialect);
  text("partition_key", o.partition_key);
  text("sort_key", o.sort_key);
  text("partition_value", o.partition_value);
  for (const auto& [name, member] : attributes_by_name) text("attribute." + std::string(name), o.attributes.*member);
  o.use_index = take_word(url, "use_index", index_uses, o.use_index);
  text("index", o.index);
  if (const auto shards = url.take_number("index_shards")) {
    // Out of the option's range: any value that it refuses.
    o.index_shards =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(*shards, std::numeric_limits<std::uint32_t>::max()));
  }
  o.consistent_fallback = url.take_flag("consistent_fallback").value_or(o.consistent_fallback);
  o.read_first_over = url.take_number("read_first_over").value_or(o.read_first_over);
  o.allow_eventual = url.take_flag("allow_eventual").value_or(o.allow_eventual);
  o.count_capacity = url.take_flag("count_capacity").value_or(o.count_capacity);
  url.refuse_rest(
      "region, endpoint, profile, ca_file, request_timeout, operation_timeout, dialect, partition_key, sort_key, "
      "partition_value, attribute.NAME, use_index, index, index_shards, consistent_fallback, read_first_over, "
      "allow_eventual, count_capacity");
  const std::string& path = url.path();
  if (!path.starts_with("//") || path.size() == 2) {
    url.refuse("two slashes and the table are missing, as in dynamodb://table");
  }
  o.table = path.substr(2);
  if (o.table.find('/') != std::string::npos && !o.table.starts_with("arn:")) {
    url.refuse("the table's name has a '/': only its name or its ARN comes before the '?'");
  }
  return o;
}

}  // namespace

DynamoDbOptions dynamodb_options(std::string_view text) {
  Url url(text);
  if (url.scheme() != "dynamodb") url.refuse("it must begin with dynamodb:, as in dynamodb://table");
  for (const char* const of_any_store : {"offload", "seal", "seal_command", "write_clear", "read_clear"})
    url.take_text(of_any_store);
  return take_dynamodb(url);
}

std::string dynamodb_results(std::string_view text) {
  const std::string offload = Url(text).take_text("offload").value_or("");
  constexpr std::string_view scheme = "s3://";
  if (!offload.starts_with(scheme)) return {};
  std::string place = Url(offload, "offload URL").path().substr(2);
  while (place.ends_with('/')) place.pop_back();
  return place;
}

std::unique_ptr<Store> open_dynamodb(Url& url) { return make_dynamodb_store(take_dynamodb(url)); }

std::shared_ptr<Offload> open_s3(Url& url) {
  S3Options options;
  options.region = url.take_text("region").value_or("");
  options.endpoint = url.take_text("endpoint").value_or("");
  options.profile = url.take_text("profile").value_or("");
  options.ca_file = url.take_text("ca_file").value_or("");
  options.path_style = url.take_flag("path_style");
  options.timeout = url.take_duration("timeout").value_or(options.timeout);
  url.refuse_rest("region, endpoint, profile, ca_file, path_style, timeout");
  std::string_view path = url.path();
  if (!path.starts_with("//")) url.refuse("two slashes and the bucket are missing, as in s3://bucket/prefix");
  path.remove_prefix(2);
  const auto slash = std::min(path.find('/'), path.size());
  options.bucket = path.substr(0, slash);
  options.prefix = path.substr(std::min(slash + 1, path.size()));
  return make_s3_offload(std::move(options));
}

}  // namespace once::stores
