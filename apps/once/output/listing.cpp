#include "output/listing.hpp"

#include <cstddef>
#include <nlohmann/json.hpp>
#include <vector>

#include <once/operate.hpp>

#include "output/report.hpp"

namespace once::cli {

namespace {

std::string ends(const Record& record, operate::Standing standing, Time now) {
  const std::string overdue = is_overdue(record, now) ? ", overdue since " + relative(record.expected_until, now) : "";
  switch (standing) {
    case operate::Standing::running:
      return "lease " + relative(record.lease_until, now) + overdue;
    case operate::Standing::lapsed:
      return "lapsed " + relative(record.lease_until, now) + overdue;
    case operate::Standing::unknown:
      return "since " + relative(record.finished_at, now);
    case operate::Standing::released:
    case operate::Standing::completed:
    case operate::Standing::failed:
    case operate::Standing::expired:
      break;
  }
  return (standing == operate::Standing::expired ? "expired " : "expires ") + relative(record.expires_at, now) +
         overdue;
}

// Unless it says what the key says already.
std::string other_label(const Record& record, const KeyParts& parts) {
  return record.label.empty() || record.label == parts.name ? "-" : escaped(record.label);
}

std::vector<std::string> head(bool matches) {
  std::vector<std::string> names{"STATE", "SCOPE", "KEY", "ATTEMPT", "CREATED", "UNTIL", "LABEL", "HOLDER"};
  if (matches) names.insert(names.begin(), "MATCH");
  return names;
}

}  // namespace

Listing::Listing(bool json, bool matches, Time now)
    : json_(json), matches_(matches), now_(now), table_(head(matches)), text_(json ? "[" : "") {}

void Listing::write(std::string_view text) {
  progress_.end();
  written_ = print(text);
}

bool Listing::add(const Record& record, std::string_view match) {
  count_ += 1;
  if (json_) {
    nlohmann::ordered_json json = record_json(record, now_, false);
    if (matches_) json["match"] = match;
    std::string one = json_text(json);
    one.pop_back();
    text_ += (count_ == 1 ? "\n" : ",\n") + one;
    constexpr std::size_t piece_bytes = 65536;
    if (text_.size() > piece_bytes) {
      write(text_);
      text_.clear();
    }
    return written_ == exit_ok;
  }
  constexpr std::size_t piece_rows = 500;
  if (table_.rows() > piece_rows) write(table_.take());
  const KeyParts parts = key_parts(record.key);
  const operate::Standing standing = operate::standing(record, now_);
  std::vector<std::string> row{std::string(operate::to_string(standing)),
                               parts.scope.empty() ? "-" : escaped(parts.scope),
                               escaped(parts.name),
                               std::to_string(record.attempt),
                               relative(record.created_at, now_),
                               ends(record, standing, now_),
                               other_label(record, parts),
                               escaped(record.holder)};
  if (matches_) row.emplace(row.begin(), match);
  table_.add(std::move(row));
  return written_ == exit_ok;
}

int Listing::end(const std::optional<Error>& error) {
  progress_.end();
  if (written_ != exit_ok) return written_;
  if (json_) {
    // An array without its end shows that records are missing. Unreadable records do not count as missing.
    if (!error || error->kind == ErrorKind::corrupt) text_ += count_ == 0 ? "]\n" : "\n]\n";
    write(text_);
  } else if (count_ > 0) {
    write(table_.take());
  }
  return error ? fail_with(*error) : written_;
}

}  // namespace once::cli
