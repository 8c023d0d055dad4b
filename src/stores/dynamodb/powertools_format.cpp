// The records of Powertools for AWS Lambda (Python 3, TypeScript 2, Java 2, .NET 1 and later), as its idempotency
// utilities write and read them. once's own fields are in attributes of type S that they ignore.
//
//   partition and sort key   S   the record's key as it is: "<prefix>#<digest>"
//   expiration               N   seconds
//   status                   S   INPROGRESS or COMPLETED, no other
//   in_progress_expiration   N   milliseconds: the lease. 0: released. In progress only
//   validation               S   the fingerprint, as the library writes its digest
//   data                         the result: powertools_result.hpp
//
//   owner, token, attempt, revision, expires_at, created_at, finished_at, expected_until, holder, note, label, history,
//   input, input_bytes, content_type, result; placement, location, data_bytes, data_sha256 for a result that lies
//   elsewhere; steps
//
// The libraries take over by replacing an item, which removes our attributes. But they complete by changing three
// attributes, unconditionally, and then ours stay. So an item is ours only if it is as we wrote it: a COMPLETED has
// finished_at, and `expiration` follows from our expires_at. Every other item is a foreign one. Its status and both
// times, which identify it, are packed into the record's owner and revision.
#include <algorithm>
#include <cstdlib>
#include <limits>
#include <tuple>
#include <utility>

#include <once/fingerprint.hpp>
#include <once/keys/key_deriver.hpp>

#include "stores/dynamodb/item_fields.hpp"
#include "stores/dynamodb/item_format.hpp"
#include "stores/dynamodb/powertools_result.hpp"
#include "text/ascii.hpp"
#include "text/base64.hpp"
#include "text/number.hpp"
#include "text/utf8.hpp"

namespace once::stores::dynamodb {

namespace {

using keys::Dialect;
using Type = AttributeValue::Type;

constexpr std::string_view in_progress = "INPROGRESS";
constexpr std::string_view completed = "COMPLETED";
constexpr std::string_view json_type = "application/json";
constexpr std::string_view offloaded = "offloaded";
constexpr std::string_view dropped = "dropped";

// The end of the year 9999: `never`, where a number must stand. JavaScript reads it exactly, in milliseconds too.
constexpr std::int64_t last_second = 253'402'300'799;

// A number of an item: digits * 10^exponent, without trailing zeros. At most 17 digits, as a double needs: older
// versions for TypeScript wrote fractions (powertools-lambda-typescript, issue 2298).
struct Decimal {
  std::uint64_t digits = 0;
  int exponent = 0;

  static constexpr int least_exponent = -32;
  static constexpr int most_exponent = 31;
  static constexpr std::uint64_t most_digits = 99'999'999'999'999'999;  // Less than 2^57.

  static std::optional<Decimal> parse(
      std::string_view text);  // Empty for numbers that do not fit, and for negative ones.

  [[nodiscard]] std::string text() const;
  [[nodiscard]] std::int64_t times_power(
      int power) const;  // This * 10^power, rounded down; the maximum if it is too large.

  [[nodiscard]] std::uint64_t packed() const {
    return static_cast<std::uint64_t>(exponent - least_exponent) << 57U | digits;
  }
  static Decimal unpack(std::uint64_t bits) {
    return {bits & ((std::uint64_t{1} << 57U) - 1), static_cast<int>(bits >> 57U & 63U) + least_exponent};
  }

  friend bool operator==(const Decimal&, const Decimal&) = default;
};

std::optional<Decimal> Decimal::parse(std::string_view text) {
  const std::size_t e = std::min(text.find_first_of("eE"), text.size());
  Decimal number;
  if (e < text.size()) {
    std::string_view power = text.substr(e + 1);
    if (power.starts_with('+')) power.remove_prefix(1);
    const auto exponent = text::parse_whole<int>(power);
    if (!exponent || std::abs(*exponent) > 1000) return {};
    number.exponent = *exponent;
  }
  const std::string_view mantissa = text.substr(0, e);
  const std::size_t point = std::min(mantissa.find('.'), mantissa.size());
  std::string all(mantissa.substr(0, point));
  if (point < mantissa.size()) {
    all += mantissa.substr(point + 1);
    number.exponent -= static_cast<int>(mantissa.size() - point - 1);
  }
  if (all.empty() || all.size() > 200) return {};
  while (all.size() > 1 && all.ends_with('0')) {
    all.pop_back();
    ++number.exponent;
  }
  const auto digits = text::parse_whole<decltype(number.digits)>(all);
  if (!digits || *digits > most_digits) return {};
  number.digits = *digits;
  if (number.digits == 0) number.exponent = 0;
  if (number.exponent < least_exponent || number.exponent > most_exponent) return {};
  return number;
}

std::string Decimal::text() const {
  std::string out = std::to_string(digits);
  if (exponent >= 0) return out.append(static_cast<std::size_t>(exponent), '0');
  const auto after = static_cast<std::size_t>(-exponent);
  if (out.size() <= after) out.insert(0, after + 1 - out.size(), '0');
  return out.insert(out.size() - after, 1, '.');
}

std::int64_t Decimal::times_power(int power) const {
  constexpr auto most = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  std::uint64_t value = digits;
  for (int k = exponent + power; k > 0 && value != 0; --k) {
    if (value > most / 10) return static_cast<std::int64_t>(most);
    value *= 10;
  }
  for (int k = exponent + power; k < 0 && value != 0; ++k) value /= 10;
  return static_cast<std::int64_t>(value);
}

// The values that identify a foreign item.
struct ForeignMarks {
  bool completed = false;
  std::optional<Decimal> expiration;
  std::optional<Decimal> lease;  // in_progress_expiration
  bool ours_below = false;       // It has our owner: a library has completed our record.
  bool finished_below = false;   // It also has our finished_at.

  // Both times fill the owner. The revision has the flags instead of a counter, and no random bits. A record of ours
  // that takes such an item over counts from there, and never reaches the next multiple of 2^47.
  [[nodiscard]] std::pair<Owner, std::uint64_t> packed() const;
  static std::optional<ForeignMarks> unpack(const Owner& owner, std::uint64_t revision);  // Empty: our own item.

 private:
  static constexpr std::uint64_t foreign = std::uint64_t{1} << 52U;
  static constexpr unsigned flags_at = 47;
};

std::pair<Owner, std::uint64_t> ForeignMarks::packed() const {
  Owner owner;
  const std::uint64_t times[2] = {expiration.value_or(Decimal{}).packed(), lease.value_or(Decimal{}).packed()};
  for (std::size_t i = 0; i < owner.bytes.size(); ++i) {
    owner.bytes[i] = static_cast<std::uint8_t>(times[i / 8] >> (56 - 8 * (i % 8)));
  }
  const std::uint64_t flags = (completed ? 1U : 0U) | (expiration ? 2U : 0U) | (lease ? 4U : 0U) |
                              (ours_below ? 8U : 0U) | (finished_below ? 16U : 0U);
  return {owner, foreign | flags << flags_at};
}

std::optional<ForeignMarks> ForeignMarks::unpack(const Owner& owner, std::uint64_t revision) {
  if ((revision & foreign) == 0 || (revision & ((std::uint64_t{1} << flags_at) - 1)) != 0) return std::nullopt;
  std::uint64_t times[2] = {0, 0};
  for (std::size_t i = 0; i < owner.bytes.size(); ++i) times[i / 8] = times[i / 8] << 8U | owner.bytes[i];
  const std::uint64_t flags = revision >> flags_at;
  ForeignMarks marks;
  marks.completed = (flags & 1U) != 0;
  if ((flags & 2U) != 0) marks.expiration = Decimal::unpack(times[0]);
  if ((flags & 4U) != 0) marks.lease = Decimal::unpack(times[1]);
  marks.ours_below = (flags & 8U) != 0;
  marks.finished_below = (flags & 16U) != 0;
  return marks;
}

Dialect dialect_of(DynamoDbDialect dialect) {
  switch (dialect) {
    case DynamoDbDialect::powertools_python:
      return Dialect::powertools_python;
    case DynamoDbDialect::powertools_typescript:
      return Dialect::powertools_typescript;
    case DynamoDbDialect::powertools_java:
      return Dialect::powertools_java;
    case DynamoDbDialect::powertools_dotnet:
      return Dialect::powertools_dotnet;
    case DynamoDbDialect::native:
      break;
  }
  throw Exception(ErrorKind::misuse, "the native dialect has a format of its own");
}

class PowertoolsFormat final : public ItemFormat {
 public:
  explicit PowertoolsFormat(const DynamoDbOptions& options)
      : a_(options.attributes), primary_key_(options), dialect_(dialect_of(options.dialect)) {}

  [[nodiscard]] std::variant<Item, Error> primary_key(std::string_view key) const override {
    const std::size_t most = primary_key_.max_bytes();
    if (key.empty() || key.size() > most || !text::valid_utf8(key)) {
      return refuse(key, "a key of " + writer() + " must be UTF-8 of 1 to " + std::to_string(most) + " bytes");
    }
    Item item;
    primary_key_.add(item, std::string(key));
    return item;
  }

  [[nodiscard]] std::variant<std::string, Error> key_of(const Item& item) const override {
    const std::string& attribute = primary_key_.name();
    const AttributeValue* id = item.find(attribute);
    if (id != nullptr && id->type == Type::s && !id->text.empty()) return id->text;
    return Error{ErrorKind::corrupt,
                 "an item has no key '" + attribute + "' of type S: the item was not written by " + writer()};
  }

  [[nodiscard]] std::variant<Item, Error> encode(const Record& record) const override {
    if (record.state == State::failed) {
      return refuse(record.key,
                    writer() + " has no status for a failure: let the work release its claim when it throws");
    }
    if (record.state == State::unknown) {
      return refuse(record.key, writer() + " has no status for an unknown outcome: let lapsed claims be taken over");
    }
    const bool done = record.state == State::completed;
    if (record.on_lapse == OnLapse::hold) {
      return refuse(record.key, writer() + " takes over every lapsed claim: it cannot hold one");
    }
    if (!done && (unix_ms(record.lease_until) < 0 || unix_ms(record.lease_until) / 1000 > last_second)) {
      return refuse(record.key, "the lease ends before 1970 or after 9999");
    }
    auto key = primary_key(record.key);
    if (std::holds_alternative<Error>(key)) return key;
    Item item = std::get<Item>(std::move(key));
    item.reserve(20);
    item.add(a_.expiration, AttributeValue::n(expiration_of(record)));
    item.add(a_.status, AttributeValue::s(std::string(done ? completed : in_progress)));
    if (!done) item.add(a_.in_progress_expiration, AttributeValue::n(unix_ms(record.lease_until)));
    if (!record.fingerprint.empty()) {
      item.add(a_.validation, AttributeValue::s(keys::digest_text(dialect_, record.fingerprint.bytes())));
    }
    if (done) {
      try {
        add_result(item, record.result);
      } catch (const Exception& error) {
        return refuse(record.key, error.what());
      }
    }
    item.add(a_.owner, AttributeValue::s(record.owner.hex()));
    add_number(item, a_.token, record.token);
    add_number(item, a_.attempt, record.attempt);
    add_number(item, a_.revision, record.revision);
    add_number(item, a_.expires_at, unix_ms(record.expires_at));
    if (record.created_at != Time{}) add_number(item, a_.created_at, unix_ms(record.created_at));
    if (done) add_number(item, a_.finished_at, unix_ms(record.finished_at));
    add_text(item, a_.holder, record.holder);
    add_text(item, a_.note, record.note);
    if (record.expected_until != Time{}) add_number(item, a_.expected_until, unix_ms(record.expected_until));
    add_text(item, a_.label, record.label);
    add_text(item, a_.history, history_text(record.history));
    add_text(item, a_.input, record.input);
    if (record.input_bytes != 0) add_number(item, a_.input_bytes, record.input_bytes);
    if (!record.steps.empty()) item.add(a_.steps, AttributeValue::s(steps_text(record.steps)));
    return item;
  }

  [[nodiscard]] Condition unchanged(const Seen& seen) const override {
    Condition condition{.expression = {}, .names = {{"#c_owner", a_.owner}, {"#c_status", a_.status}}, .values = {}};
    const std::optional<ForeignMarks> marks = ForeignMarks::unpack(seen.owner, seen.revision);
    if (!marks) {
      condition.expression =
          "#c_owner = :c_owner AND #c_revision = :c_revision AND "
          "(#c_status <> :c_status OR attribute_exists(#c_finished))";
      condition.names.emplace_back("#c_revision", a_.revision);
      condition.names.emplace_back("#c_finished", a_.finished_at);
      condition.values.add(":c_owner", AttributeValue::s(seen.owner.hex()));
      condition.values.add(":c_revision", AttributeValue::s(std::to_string(seen.revision)));
      condition.values.add(":c_status", AttributeValue::s(std::string(completed)));
      return condition;
    }
    condition.expression = "#c_status = :c_status";
    condition.values.add(":c_status", AttributeValue::s(std::string(marks->completed ? completed : in_progress)));
    const auto presence = [&](bool there, std::string_view name) {
      condition.expression += there ? " AND attribute_exists(" : " AND attribute_not_exists(";
      condition.expression.append(name).append(1, ')');
    };
    const auto time = [&](const std::optional<Decimal>& is, const std::string& name, const std::string& value,
                          const std::string& attribute) {
      condition.names.emplace_back(name, attribute);
      if (!is) return presence(false, name);
      condition.expression.append(" AND ").append(name).append(" = ").append(value);
      condition.values.add(value, AttributeValue::n(is->text()));
    };
    time(marks->expiration, "#c_expiration", ":c_expiration", a_.expiration);
    time(marks->lease, "#c_lease", ":c_lease", a_.in_progress_expiration);
    presence(marks->ours_below, "#c_owner");
    if (marks->ours_below) {
      condition.names.emplace_back("#c_finished", a_.finished_at);
      presence(marks->finished_below, "#c_finished");
    }
    return condition;
  }

  [[nodiscard]] std::optional<Condition> filter(const ListQuery& query) const override {
    // The table may have other items, which have no status.
    Condition condition{.expression = "attribute_exists(#f_status)", .names = {{"#f_status", a_.status}}, .values = {}};
    if (query.state) {
      const bool done = query.state == State::completed;
      if (!done && query.state != State::in_progress) {
        condition.expression =
            "attribute_not_exists(#f_status) AND attribute_exists(#f_status)";  // There are no such records.
        return condition;
      }
      condition.expression = "#f_status = :f_status";
      condition.values.add(":f_status", AttributeValue::s(std::string(done ? completed : in_progress)));
    }
    if (query.expired_at) {
      condition.expression += " AND #f_expiration <= :f_expiration";
      condition.names.emplace_back("#f_expiration", a_.expiration);
      condition.values.add(":f_expiration", AttributeValue::n(seconds_rounded_up(*query.expired_at)));
    }
    return condition;
  }

  [[nodiscard]] std::size_t max_record_bytes() const noexcept override {
    // A result whose text grows too much (escapes in Python, small numbers in TypeScript) is refused when it is
    // written.
    return max_item_bytes - std::size_t{8} * 1024;
  }

 private:
  [[nodiscard]] std::string writer() const override { return std::string(keys::to_string(dialect_)); }

  static Error refuse(std::string_view key, const std::string& why) {
    return {ErrorKind::misuse, "the record '" + text::printable(key) + "' cannot be written: " + why};
  }

  // Rounded like the libraries, but so that none of them takes a live claim for an expired record.
  [[nodiscard]] std::int64_t expiration_of(const Record& record) const {
    const std::int64_t at = std::clamp<std::int64_t>(unix_ms(record.expires_at), 0, last_second * 1000);
    const std::int64_t seconds = (dialect_ == Dialect::powertools_typescript ? at + 500 : at) / 1000;
    return record.state == State::completed ? seconds : std::max(seconds, seconds_rounded_up(record.lease_until));
  }

  template <class Number>
  static void add_number(Item& item, const std::string& name, Number number) {
    item.add(name, AttributeValue::s(std::to_string(number)));
  }

  void add_result(Item& item, const Result& result) const {
    if (result.content_type != json_type) item.add(a_.content_type, AttributeValue::s(result.content_type));
    if (result.placement == Placement::compressed || result.placement == Placement::sealed) {
      throw Exception(ErrorKind::misuse, "the result is " + std::string(to_string(result.placement)) +
                                             ", which the readers of " + writer() + " do not support");
    }
    if (result.placement != Placement::inlined) {
      item.add(a_.data, unreadable_powertools_data(dialect_));
      item.add(a_.placement,
               AttributeValue::s(std::string(result.placement == Placement::offloaded ? offloaded : dropped)));
      add_text(item, a_.location, result.location);
      add_number(item, a_.data_bytes, result.size);
      std::string digest;
      text::append_base64(digest, {reinterpret_cast<const char*>(result.digest.data()), result.digest.size()});
      item.add(a_.data_sha256, AttributeValue::s(std::move(digest)));
      return;
    }
    if (result.bytes.empty()) {
      // No result, as of a function that returns none. TypeScript leaves the attribute out (undefined).
      if (dialect_ != Dialect::powertools_typescript) item.add(a_.data, AttributeValue::s("null"));
      item.add(a_.result, AttributeValue::s(""));
      return;
    }
    if (result.content_type != json_type && !result.content_type.starts_with("application/json;")) {
      throw Exception(
          ErrorKind::misuse,
          "the result is of type '" + text::printable(result.content_type) + "', and records of " + writer() +
              " hold JSON: return a type that <once/codec_json.hpp> encodes, or a Result of application/json");
    }
    PowertoolsData data = write_powertools_data(dialect_, result.bytes);
    item.add(a_.data, std::move(data.value));
    if (!data.exact) item.add(a_.result, AttributeValue::s(result.bytes));
  }

  // Name and result of each step in base64, so that any bytes are an S.
  static std::string steps_text(const std::vector<Step>& steps) {
    std::string out;
    for (const Step& step : steps) {
      if (!out.empty()) out += ' ';
      text::append_base64(out, step.name);
      out += ':';
      text::append_base64(out, step.result);
    }
    return out;
  }

  [[nodiscard]] std::vector<Step> steps_in(std::string_view text) const {
    std::vector<Step> steps;
    while (!text.empty()) {
      const std::string_view one = text.substr(0, text.find(' '));
      text.remove_prefix(std::min(one.size() + 1, text.size()));
      const std::size_t colon = std::min(one.find(':'), one.size());
      const auto name = text::decode_base64(one.substr(0, colon));
      const auto result = text::decode_base64(one.substr(std::min(colon + 1, one.size())));
      if (colon == one.size() || !name || name->empty() || !result) throw Malformed{a_.steps, "is malformed"};
      steps.push_back({*name, *result});
    }
    return steps;
  }

  static std::optional<Decimal> decimal(const Item& item, const std::string& name) {
    const AttributeValue* value = find_of(item, name, Type::n);
    if (value == nullptr) return std::nullopt;
    const auto number = Decimal::parse(value->text);
    if (!number) throw Malformed{name, "is not a time: " + text::printable(value->text)};
    return number;
  }

  // One of our own numbers, in an S. 0 if it is missing.
  template <class Number>
  static Number number(const Item& item, const std::string& name) {
    const AttributeValue* value = find_of(item, name, Type::s);
    if (value == nullptr) return 0;
    const auto number = text::parse_whole<Number>(value->text);
    if (!number) throw Malformed{name, "is not a whole number in range"};
    return *number;
  }

  static Time time(const Item& item, const std::string& name) { return Time(Millis(number<std::int64_t>(item, name))); }

  [[nodiscard]] Record read(const Item& item) const override {
    Record record;
    ForeignMarks marks;
    const std::string& status = get_of(item, a_.status, Type::s).text;
    marks.completed = status == completed;
    if (!marks.completed && status != in_progress) {
      throw Malformed{a_.status, "is '" + text::printable(status) + "', neither INPROGRESS nor COMPLETED"};
    }
    record.state = marks.completed ? State::completed : State::in_progress;
    marks.expiration = decimal(item, a_.expiration);
    // TypeScript treats such a record as one that does not expire; the others raise an error.
    if (!marks.expiration && dialect_ != Dialect::powertools_typescript) throw Malformed{a_.expiration, "is missing"};
    marks.lease = decimal(item, a_.in_progress_expiration);
    const AttributeValue* owner = find_of(item, a_.owner, Type::s);
    marks.ours_below = owner != nullptr;
    marks.finished_below = item.find(a_.finished_at) != nullptr;
    if (const AttributeValue* validation = find_of(item, a_.validation, Type::s)) {
      record.fingerprint = fingerprint(validation->text);
    }
    if (marks.ours_below) {
      record.token = number<std::uint64_t>(item, a_.token);
      record.attempt = number<std::uint32_t>(item, a_.attempt);
      record.created_at = time(item, a_.created_at);
      record.expires_at = time(item, a_.expires_at);
      if (!marks.completed && marks.lease) record.lease_until = Time(Millis(marks.lease->times_power(0)));
      if (is_as_we_wrote_it(record, marks)) return read_ours(item, owner->text, std::move(record));
    }
    return read_foreign(item, marks, std::move(record));
  }

  [[nodiscard]] bool is_as_we_wrote_it(const Record& record, const ForeignMarks& marks) const {
    const Decimal ours = Decimal::parse(std::to_string(expiration_of(record))).value_or(Decimal{});
    return marks.completed == marks.finished_below && marks.completed != marks.lease.has_value() &&
           marks.expiration == ours;
  }

  [[nodiscard]] Record read_ours(const Item& item, std::string_view owner, Record record) const {
    const auto id = Owner::from_hex(owner);
    if (!id) throw Malformed{a_.owner, "is not 32 hexadecimal digits"};
    record.owner = *id;
    record.revision = number<std::uint64_t>(item, a_.revision);
    if (!is_revision(record.revision)) {
      throw Malformed{a_.revision, "is not from 2^20 to 2^53; before its first format once wrote smaller ones"};
    }
    record.finished_at = time(item, a_.finished_at);
    record.holder = find_text(item, a_.holder);
    record.note = find_text(item, a_.note);
    record.expected_until = time(item, a_.expected_until);
    record.label = find_text(item, a_.label);
    auto history = history_from_text(find_text(item, a_.history));
    if (!history) throw Malformed{a_.history, "is not a list of netstrings"};
    record.history = *std::move(history);
    record.input = find_text(item, a_.input);
    record.input_bytes = number<std::uint64_t>(item, a_.input_bytes);
    if (const AttributeValue* steps = find_of(item, a_.steps, Type::s)) record.steps = steps_in(steps->text);
    if (record.state != State::completed) return record;

    Result& result = record.result;
    const AttributeValue* type = find_of(item, a_.content_type, Type::s);
    result.content_type = type == nullptr ? std::string(json_type) : type->text;
    const AttributeValue* exact = find_of(item, a_.result, Type::s);
    const std::string placement = find_text(item, a_.placement);
    if (placement.empty()) {
      result.bytes = exact != nullptr ? exact->text : data_in(item);
      return record;
    }
    if (placement != offloaded && placement != dropped)
      throw Malformed{a_.placement, "is neither offloaded nor dropped"};
    result.placement = placement == offloaded ? Placement::offloaded : Placement::dropped;
    result.location = find_text(item, a_.location);
    result.size = number<std::uint64_t>(item, a_.data_bytes);
    const auto digest = text::decode_base64(find_text(item, a_.data_sha256));
    if (!digest || digest->size() != result.digest.size()) throw Malformed{a_.data_sha256, "is not a SHA-256"};
    std::copy(digest->begin(), digest->end(), result.digest.begin());
    return record;
  }

  [[nodiscard]] Record read_foreign(const Item& item, const ForeignMarks& marks, Record record) const {
    std::tie(record.owner, record.revision) = marks.packed();
    record.attempt = std::max<std::uint32_t>(record.attempt, 1);
    record.expires_at = marks.expiration ? Time(Millis(marks.expiration->times_power(3))) : never;
    if (marks.completed) {
      record.result = Result::inlined(data_in(item), std::string(json_type));
      return record;
    }
    // Without its own lease a claim lives as long as its record. No record expires during a live claim.
    record.lease_until = marks.lease ? Time(Millis(marks.lease->times_power(0))) : record.expires_at;
    record.expires_at = std::max(record.expires_at, record.lease_until);
    return record;
  }

  [[nodiscard]] std::string data_in(const Item& item) const {
    try {
      return read_powertools_data(dialect_, item.find(a_.data));
    } catch (const Exception& error) {
      throw Malformed{a_.data, std::string("cannot be read: ") + error.what()};
    }
  }

  // A text that is not a digest still differs from every payload's digest.
  [[nodiscard]] Fingerprint fingerprint(const std::string& text) const {
    if (text.empty()) return {};
    if (auto digest = keys::digest_from_text(dialect_, text)) return *digest;
    return Fingerprint(sha256(text));
  }

  const DynamoDbAttributes a_;
  const PrimaryKey primary_key_;
  const Dialect dialect_;
};

}  // namespace

std::unique_ptr<ItemFormat> make_powertools_format(const DynamoDbOptions& options) {
  return std::make_unique<PowertoolsFormat>(options);
}

}  // namespace once::stores::dynamodb
