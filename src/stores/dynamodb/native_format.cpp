// once's own format: every field of a record is an attribute of the item. docs/stores/dynamodb.md has the table.
#include <algorithm>
#include <array>
#include <limits>

#include <once/fingerprint.hpp>

#include "stores/dynamodb/item_fields.hpp"
#include "stores/dynamodb/item_format.hpp"
#include "text/ascii.hpp"
#include "text/number.hpp"
#include "text/percent.hpp"
#include "text/utf8.hpp"

namespace once::stores::dynamodb {

namespace {

using Type = AttributeValue::Type;

// How much of a too long key stays readable before its digest.
constexpr std::size_t readable_bytes = 128;
constexpr std::string_view digest_mark = "%sha256:";  // No escape: 's' is no hexadecimal digit.

// By number of the placement. Inlined bytes need no attribute.
constexpr std::array<std::string_view, 5> placements{"", "offloaded", "dropped", "compressed", "sealed"};
constexpr std::string_view step_name = "name";
constexpr std::string_view step_result = "result";

// Writes '%', control characters and invalid UTF-8 as %XX, everything else unchanged.
std::string escaped(std::string_view key) {
  if (is_readable_text(key) && key.find_first_of("%\t\n\r") == std::string_view::npos) return std::string(key);
  const bool utf8 = text::valid_utf8(key);
  return text::percent_encoded(key, [&](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return c != '%' && byte >= 0x20 && byte != 0x7F && (byte < 0x80 || utf8);
  });
}

// The value of the primary key for a record's key: escaped, or, if that is too long, its beginning and the key's
// SHA-256. Different keys have different values, unless SHA-256 collides.
std::string id_of(std::string_view key, std::size_t limit) {
  std::string id = escaped(key);
  if (id.size() <= limit) return id;
  std::size_t cut = readable_bytes;
  while (cut > 0 && (static_cast<unsigned char>(id[cut]) & 0xC0U) == 0x80U) --cut;  // Not within a character,
  const std::size_t percent = id.rfind('%', cut);                                   // nor within an escape.
  if (percent != std::string::npos && percent + 3 > cut) cut = percent;
  id.resize(cut);
  id += digest_mark;
  id += to_hex(sha256(key));
  return id;
}

std::optional<std::int64_t> find_number(const Item& item, const std::string& name, std::int64_t low) {
  const AttributeValue* value = find_of(item, name, Type::n);
  if (value == nullptr) return std::nullopt;
  const auto number = text::parse_whole<std::int64_t>(value->text);
  if (!number || *number < low) throw Malformed{name, "is not a whole number in range"};
  return number;
}

template <class Number = std::uint64_t>
Number get_count(const Item& item, const std::string& name) {
  const auto number = text::parse_whole<Number>(get_of(item, name, Type::n).text);
  if (!number || *number > std::numeric_limits<std::int64_t>::max()) throw Malformed{name, "is not a count in range"};
  return *number;
}

Time find_time(const Item& item, const std::string& name, Time if_absent = {}) {
  const auto value = find_number(item, name, std::numeric_limits<std::int64_t>::min());
  return value ? Time(Millis(*value)) : if_absent;
}

std::string_view find_bytes(const Item& item, const std::string& name, std::size_t least, std::size_t most) {
  const AttributeValue* value = find_of(item, name, Type::b);
  if (value == nullptr) return {};
  if (value->text.size() < least || value->text.size() > most) throw Malformed{name, "is not of the right size"};
  return value->text;
}

std::string_view find_word(const Item& item, const std::string& name) {
  const AttributeValue* value = find_of(item, name, Type::s);
  return value == nullptr ? std::string_view() : value->text;
}

class NativeFormat final : public ItemFormat {
 public:
  explicit NativeFormat(const DynamoDbOptions& options)
      : a_(options.attributes), primary_key_(options), shards_(options.index_shards) {
    std::size_t names = primary_key_.bytes_beside_id();
    for (const std::string* name : attribute_names(a_)) names += name->size();
    // The item's overhead: names, the key again if it is escaped or digested, and 16 bytes for each of 256 steps.
    max_record_bytes_ = max_item_bytes - names - std::size_t{2048} - std::size_t{256} * 16;
  }

  [[nodiscard]] std::variant<Item, Error> primary_key(std::string_view key) const override {
    Item item;
    primary_key_.add(item, id_of(key, primary_key_.max_bytes()));
    return item;
  }

  [[nodiscard]] std::variant<std::string, Error> key_of(const Item& item) const override {
    const auto refuse = [&](std::string_view id, const std::string& why) {
      return Error{ErrorKind::corrupt, "the item '" + text::printable(id) + "' " + why +
                                           ": the item was not written by this store; repair or delete it"};
    };
    const std::string& name = primary_key_.name();
    const AttributeValue* id = item.find(name);
    if (id == nullptr || id->type != Type::s) return refuse("", "has no primary key '" + name + "' of type S");
    std::optional<std::string> key;
    if (id->text.find(digest_mark) == std::string::npos) {
      key = text::percent_decoded(id->text);
    } else if (const AttributeValue* whole = item.find(a_.key)) {
      if (const std::string* text = text_of(*whole)) key = *text;
    }
    if (!key || key->empty() || id_of(*key, primary_key_.max_bytes()) != id->text) {
      return refuse(id->text, "does not have the primary key '" + name + "' that belongs to its key");
    }
    return *std::move(key);
  }

  [[nodiscard]] std::variant<Item, Error> encode(const Record& record) const override {
    Item item;
    item.reserve(20);
    std::string id = id_of(record.key, primary_key_.max_bytes());
    const std::uint32_t shard = shard_of(id);
    const bool digested = id.find(digest_mark) != std::string::npos;
    primary_key_.add(item, std::move(id));
    if (digested) add_text(item, a_.key, record.key);
    item.add(a_.status, AttributeValue::s(std::string(to_string(record.state))));
    item.add(a_.owner, AttributeValue::s(record.owner.hex()));
    item.add(a_.token, AttributeValue::n(static_cast<std::int64_t>(record.token)));
    item.add(a_.attempt, AttributeValue::n(record.attempt));
    item.add(a_.revision, AttributeValue::n(static_cast<std::int64_t>(record.revision)));
    if (record.lease_until != Time{}) item.add(a_.lease_until, AttributeValue::n(unix_ms(record.lease_until)));
    if (record.expires_at != never) {
      item.add(a_.expires_at, AttributeValue::n(unix_ms(record.expires_at)));
      item.add(a_.expiration, AttributeValue::n(seconds_rounded_up(record.expires_at)));
    }
    item.add(a_.created_at, AttributeValue::n(unix_ms(record.created_at)));
    if (record.finished_at != Time{}) item.add(a_.finished_at, AttributeValue::n(unix_ms(record.finished_at)));
    if (!record.fingerprint.empty()) {
      item.add(a_.fingerprint, AttributeValue::b(std::string(record.fingerprint.bytes())));
    }
    add_text(item, a_.holder, record.holder);
    add_text(item, a_.note, record.note);
    if (!record.steps.empty()) {
      std::vector<AttributeValue> steps;
      steps.reserve(record.steps.size());
      for (const Step& step : record.steps) {
        Item pair;
        pair.add(std::string(step_name), text_or_bytes(step.name));
        pair.add(std::string(step_result), text_or_bytes(step.result));
        steps.push_back(AttributeValue::m(std::move(pair)));
      }
      item.add(a_.steps, AttributeValue::l(std::move(steps)));
    }
    const Result& result = record.result;
    add_text(item, a_.data, result.bytes);
    add_text(item, a_.content_type, result.content_type);
    if (result.placement != Placement::inlined) {
      item.add(a_.placement, AttributeValue::s(std::string(placements.at(static_cast<std::size_t>(result.placement)))));
    }
    add_text(item, a_.location, result.location);
    if (result.size != 0) item.add(a_.data_bytes, AttributeValue::n(static_cast<std::int64_t>(result.size)));
    if (result.digest != Sha256{}) {
      item.add(a_.data_sha256, AttributeValue::b(std::string(result.digest.begin(), result.digest.end())));
    }
    add_text(item, a_.error_code, record.failure.code);
    add_text(item, a_.error_message, record.failure.message);
    if (record.on_lapse != OnLapse::takeover) {
      item.add(a_.on_lapse, AttributeValue::s(std::string(to_string(record.on_lapse))));
    }
    if (record.expected_until != Time{}) item.add(a_.expected_until, AttributeValue::n(unix_ms(record.expected_until)));
    add_text(item, a_.label, record.label);
    add_text(item, a_.history, history_text(record.history));
    add_text(item, a_.input, record.input);
    if (record.input_bytes != 0) {
      item.add(a_.input_bytes, AttributeValue::n(static_cast<std::int64_t>(record.input_bytes)));
    }
    if (record.state != State::completed) item.add(a_.open, AttributeValue::s(*open_partition(shard)));
    return item;
  }

  [[nodiscard]] Condition unchanged(const Seen& seen) const override {
    Condition condition{.expression = "#c_owner = :c_owner AND #c_revision = :c_revision",
                        .names = {{"#c_owner", a_.owner}, {"#c_revision", a_.revision}},
                        .values = {}};
    condition.values.add(":c_owner", AttributeValue::s(seen.owner.hex()));
    condition.values.add(":c_revision", AttributeValue::n(static_cast<std::int64_t>(seen.revision)));
    return condition;
  }

  [[nodiscard]] std::optional<Condition> filter(const ListQuery& query) const override {
    Condition condition;
    const auto also = [&](std::string_view expression, std::string_view name, const std::string& attribute,
                          std::string_view value, AttributeValue is) {
      if (!condition.expression.empty()) condition.expression += " AND ";
      condition.expression += expression;
      condition.names.emplace_back(name, attribute);
      condition.values.add(std::string(value), std::move(is));
    };
    if (query.state) {
      also("#f_status = :f_status", "#f_status", a_.status, ":f_status",
           AttributeValue::s(std::string(to_string(*query.state))));
    }
    if (query.expired_at) {
      also("#f_expires <= :f_expires", "#f_expires", a_.expires_at, ":f_expires",
           AttributeValue::n(unix_ms(*query.expired_at)));
    }
    if (condition.expression.empty()) return std::nullopt;
    return condition;
  }

  [[nodiscard]] std::optional<std::string> open_partition(std::uint32_t shard) const override {
    // Several stores in one table differ in their partition values, also in the index.
    return primary_key_.prefix() + std::to_string(shard);
  }
  [[nodiscard]] bool keeps_compressed() const noexcept override { return true; }
  [[nodiscard]] std::size_t max_record_bytes() const noexcept override { return max_record_bytes_; }

 private:
  // FNV-1a of only the key: the same on every machine, so a record keeps its shard of the index while it is open.
  [[nodiscard]] std::uint32_t shard_of(std::string_view id) const {
    std::uint64_t hash = 14695981039346656037U;
    for (const char c : id) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
    return static_cast<std::uint32_t>((hash ^ (hash >> 32U)) % shards_);
  }

  [[nodiscard]] std::string writer() const override { return "this store"; }

  [[nodiscard]] Record read(const Item& item) const override {
    Record record;
    const auto state = state_from_string(get_of(item, a_.status, Type::s).text);
    if (!state) throw Malformed{a_.status, "is not a state"};
    record.state = *state;
    const auto owner = Owner::from_hex(get_of(item, a_.owner, Type::s).text);
    if (!owner) throw Malformed{a_.owner, "is not 32 hexadecimal digits"};
    record.owner = *owner;
    record.token = get_count(item, a_.token);
    record.attempt = get_count<std::uint32_t>(item, a_.attempt);
    record.revision = get_count(item, a_.revision);
    if (!is_revision(record.revision)) {
      throw Malformed{a_.revision, "is not from 2^20 to 2^53; before its first format once wrote smaller ones"};
    }
    record.lease_until = find_time(item, a_.lease_until);
    record.expires_at = find_time(item, a_.expires_at, never);
    record.created_at = find_time(item, a_.created_at);
    record.finished_at = find_time(item, a_.finished_at);
    record.fingerprint = Fingerprint(find_bytes(item, a_.fingerprint, 0, Fingerprint::max_bytes));
    record.holder = find_text(item, a_.holder);
    record.note = find_text(item, a_.note);
    record.steps = read_steps(item);
    Result& result = record.result;
    result.bytes = find_text(item, a_.data);
    result.content_type = find_text(item, a_.content_type);
    const auto* const placement = std::find(placements.begin(), placements.end(), find_word(item, a_.placement));
    if (placement == placements.end()) throw Malformed{a_.placement, "is not a placement"};
    result.placement = static_cast<Placement>(placement - placements.begin());
    result.location = find_text(item, a_.location);
    result.size = static_cast<std::uint64_t>(find_number(item, a_.data_bytes, 0).value_or(0));
    const std::string_view digest = find_bytes(item, a_.data_sha256, result.digest.size(), result.digest.size());
    std::copy(digest.begin(), digest.end(), result.digest.begin());
    record.failure.code = find_text(item, a_.error_code);
    record.failure.message = find_text(item, a_.error_message);
    if (const std::string_view word = find_word(item, a_.on_lapse); !word.empty()) {
      const auto on_lapse = on_lapse_from_string(word);
      if (!on_lapse) throw Malformed{a_.on_lapse, "is neither takeover nor hold"};
      record.on_lapse = *on_lapse;
    }
    record.expected_until = find_time(item, a_.expected_until);
    record.label = find_text(item, a_.label);
    auto history = history_from_text(find_text(item, a_.history));
    if (!history) throw Malformed{a_.history, "is not a list of netstrings"};
    record.history = *std::move(history);
    record.input = find_text(item, a_.input);
    record.input_bytes = static_cast<std::uint64_t>(find_number(item, a_.input_bytes, 0).value_or(0));
    return record;
  }

  [[nodiscard]] std::vector<Step> read_steps(const Item& item) const {
    std::vector<Step> steps;
    const AttributeValue* list = find_of(item, a_.steps, Type::l);
    if (list == nullptr) return steps;
    steps.reserve(list->list.size());
    for (const AttributeValue& element : list->list) {
      const AttributeValue* name = element.map.find(step_name);
      const AttributeValue* result = element.map.find(step_result);
      const std::string* name_text = name == nullptr ? nullptr : text_of(*name);
      const std::string* result_text = result == nullptr ? nullptr : text_of(*result);
      if (name_text == nullptr || result_text == nullptr || name_text->empty()) {
        throw Malformed{a_.steps, "has elements that are not maps of a name and a result"};
      }
      steps.push_back({*name_text, *result_text});
    }
    return steps;
  }

  const DynamoDbAttributes a_;
  const PrimaryKey primary_key_;
  const std::uint32_t shards_;
  std::size_t max_record_bytes_ = 0;
};

}  // namespace

std::unique_ptr<ItemFormat> make_native_format(const DynamoDbOptions& options) {
  return std::make_unique<NativeFormat>(options);
}

std::vector<const std::string*> attribute_names(const DynamoDbAttributes& a) {
  return {&a.status,
          &a.owner,
          &a.token,
          &a.attempt,
          &a.revision,
          &a.lease_until,
          &a.expiration,
          &a.expires_at,
          &a.created_at,
          &a.finished_at,
          &a.fingerprint,
          &a.holder,
          &a.note,
          &a.steps,
          &a.data,
          &a.content_type,
          &a.placement,
          &a.location,
          &a.data_bytes,
          &a.data_sha256,
          &a.error_code,
          &a.error_message,
          &a.on_lapse,
          &a.expected_until,
          &a.label,
          &a.history,
          &a.input,
          &a.input_bytes,
          &a.key,
          &a.open,
          &a.in_progress_expiration,
          &a.validation,
          &a.result};
}

}  // namespace once::stores::dynamodb
