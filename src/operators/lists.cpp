#include "operators/lists.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include <once/error.hpp>
#include <once/fingerprint.hpp>
#include <once/key.hpp>
#include <once/operate.hpp>
#include <once/platform/blocking.hpp>

#include "operators/answers.hpp"
#include "operators/filters.hpp"
#include "operators/record_json.hpp"
#include "operators/requests.hpp"
#include "operators/search.hpp"
#include "operators/words.hpp"
#include "text/ascii.hpp"
#include "text/hex.hpp"
#include "text/netstring.hpp"
#include "text/number.hpp"

namespace once::operators {

namespace {

constexpr std::size_t records_at_once = 500;  // That are read from the store.
constexpr unsigned most_reads = 20;           // Of the store, for one request.
constexpr std::size_t most_lookups = 64;      // Of keys that a searched text may be.
constexpr std::size_t most_found = 16;        // Of the records that these find.
constexpr std::size_t mark_bytes = 16;

// A record, in a cursor. Keys are up to 1024 bytes, so they are digested.
std::string mark_of(std::string_view stored_key) {
  const Sha256 digest = sha256(stored_key);
  return std::string(reinterpret_cast<const char*>(digest.data()), mark_bytes);
}

// Where a list goes on, for the client an opaque text. The store has cursors for the ends of its pages only, so a place
// inside of one is told by the records before it. 1. A request for 10 records reads 500, and finds the tenth at the
// 200th. 2. The next request reads the same page again, and goes on behind that record. 3. If it is gone by then, it
// goes on behind one that was before it. So none is left out that is there all the time, and one may come twice.
struct Place {
  std::string page;                // The store's cursor of the page. Empty: the first.
  std::vector<std::string> marks;  // Of records before the place, the last first. Empty: the page's beginning.
  std::vector<std::string> told;   // Marks of what was looked up, and comes no second time.

  [[nodiscard]] std::string text(const std::string& digest) const {
    std::string out;
    for (const std::string* const part : {&digest, &page}) text::append_netstring(out, *part);
    for (const auto* const list : {&marks, &told}) {
      std::string joined;
      for (const std::string& mark : *list) joined += mark;
      text::append_netstring(out, joined);
    }
    return to_hex(out);
  }

  // Throws Exception(misuse) unless it is one of text(), of a request with the same digest.
  static Place from(const std::string& text, const std::string& digest) {
    const std::string bytes = parse_hex(text, "after");
    std::string_view rest = bytes;
    const auto theirs = text::take_netstring(rest);
    const auto page = text::take_netstring(rest);
    const auto marks = text::take_netstring(rest);
    const auto told = text::take_netstring(rest);
    if (!told || !rest.empty() || marks->size() % mark_bytes != 0 || told->size() % mark_bytes != 0) {
      throw wrong("after is not the next of an answer");
    }
    if (*theirs != digest) throw wrong("after belongs to a list with other parameters: only limit may change");
    return {.page = std::string(*page), .marks = split_marks(*marks), .told = split_marks(*told)};
  }

 private:
  static std::vector<std::string> split_marks(std::string_view joined) {
    std::vector<std::string> marks;
    for (; !joined.empty(); joined.remove_prefix(mark_bytes)) marks.emplace_back(joined.substr(0, mark_bytes));
    return marks;
  }
};

// Of the records up to and with the one at `last`: the nearest ones, and then ever fewer.
std::vector<std::string> marks_before(const std::vector<Record>& records, std::size_t last) {
  std::vector<std::string> marks;
  for (const std::size_t back : {0, 1, 2, 3, 5, 8, 16, 32, 64, 128, 256}) {
    if (back <= last) marks.push_back(mark_of(records.at(last - back).key));
  }
  return marks;
}

// The first record behind the place.
std::size_t behind(const std::vector<std::string>& marks, const std::vector<Record>& records) {
  for (const std::string& mark : marks) {
    const auto found = std::ranges::find(records, mark, [](const Record& record) { return mark_of(record.key); });
    if (found != records.end()) return static_cast<std::size_t>(found - records.begin()) + 1;
  }
  return 0;
}

bool is_client(std::string_view text) {
  constexpr std::size_t digits = 2 * std::tuple_size_v<Sha256>;
  return text.size() == digits && text.find_first_not_of(text::lower_digits) == std::string_view::npos;
}

struct Wanted : ListedFilter {
  std::size_t limit = 0;
  std::string digest = {};
  std::optional<Place> place = {};
};

// The words of `state`, and `overdue`, which may be beside another.
void take_standing(std::string standing, FilterOptions& filter) {
  constexpr std::array words{"unknown",   "failed",   "lapsed",  "overdue", "in_progress",
                             "completed", "released", "running", "expired"};
  if (std::ranges::find(words, standing) == words.end()) {
    std::string all;
    for (const char* const word : words) all += (all.empty() ? "" : ", ") + std::string(word);
    throw wrong("standing is '" + escaped(standing) + "'; it is one of " + all);
  }
  if (!filter.state.empty()) throw wrong("give state or standing, not both");
  if (standing == "overdue") {
    filter.overdue = true;
  } else {
    filter.state = std::move(standing);
  }
}

Wanted wanted_of(std::string_view text) {
  Query query(text);
  Wanted wanted{take_filter(query)};
  if (const auto sort = query.take("sort"); sort && *sort != "store") {
    throw wrong("sort is '" + escaped(*sort) +
                "'; it may only be store, the store's own order: no index of the stores gives another one");
  }
  wanted.limit = query.take_limit();
  const auto after = query.take("after");
  query.end();
  wanted.digest = query.digest_without({"limit", "after"});
  if (after) wanted.place = Place::from(*after, wanted.digest);
  return wanted;
}

struct Why {
  std::string_view word;
  bool is_exact = false;
};

// Why a record is found. Empty: it is not.
std::optional<Why> why_of(const Search& search, const std::string& text, const Record& record) {
  if (const Match match = search.match(record); match != Match::none) return Why{to_string(match), is_exact(match)};
  if (record.holder == text) return Why{"holder", true};
  return text::contains_letters(record.holder, text) ? std::optional(Why{"part of holder", false}) : std::nullopt;
}

// The stored keys that the text can be: the key in one of these scopes, or a whole key in one of its forms.
std::vector<std::string> keys_of(const std::string& text, const FilterOptions& filter, bool raw_scopes,
                                 const std::vector<std::string>& prefixes) {
  std::vector<std::string> keys;
  const auto add = [&](std::string key) {
    if (key.empty() || key.size() > max_key_bytes || keys.size() == most_lookups) return;
    if (std::ranges::find(keys, key) == keys.end()) keys.push_back(std::move(key));
  };
  const auto prefix_of = [&](std::string_view scope) {
    return raw_scopes ? std::string(scope) + "#" : scope_prefix(scope);
  };
  add(prefix_of(filter.scope) + text);
  if (const auto bytes = text::from_hex(text)) add(*bytes);
  if (text.find('#') != std::string::npos) add(text);
  // SCOPE/KEY, as lists print it. Both may have slashes.
  for (auto at = text.find('/'); at != std::string::npos && keys.size() < most_lookups / 2;
       at = text.find('/', at + 1)) {
    if (at + 1 < text.size()) add(prefix_of(std::string_view(text).substr(0, at)) + text.substr(at + 1));
  }
  if (filter.has_scope) return keys;
  for (const std::string& prefix : prefixes) add(prefix + '#' + text);
  return keys;
}

// What the service was asked about each. Other records than unknown ones have no such answer.
bool says_it(const ListedFilter& wanted, const Service& service, const Record& record) {
  if (!wanted.reconciled) return true;
  const auto told = record.state == State::unknown ? service.told(record) : nullptr;
  return told && told->finding.kind == *wanted.reconciled;
}

bool is_of(const std::string& client, const Record& record) {
  return client.empty() || client_in(record.key) == client;
}

// A request at work.
class Listed {
 public:
  Listed(const StoreAccess& access, const Service& service, Wanted wanted)
      : access_(access),
        service_(service),
        wanted_(std::move(wanted)),
        now_(store_now(access)),
        filter_(filter_of(wanted_.filter, now_, access.raw_scopes, "")) {
    if (wanted_.place) place_ = *wanted_.place;
  }

  http::Answer answer(const std::vector<std::string>& prefixes) {
    if (wanted_.search && !wanted_.place) {
      if (auto failed = look_up(prefixes)) return store_problem(*failed);
    }
    if (auto failed = read()) return *std::move(failed);
    std::ranges::stable_partition(records_, &Found::is_exact);
    Json records = Json::array();
    for (Found& found : records_) records.push_back(std::move(found.json));
    Json json{{"records", std::move(records)}, {"next", ends_ ? Json(nullptr) : Json(place_.text(wanted_.digest))}};
    if (wanted_.has_standing || wanted_.search || wanted_.reconciled || !wanted_.client.empty())
      json["searched"] = searched_;
    for (const Error& error : unreadable_) json["unreadable"].push_back(error.message);
    return json_answer(200, json);
  }

 private:
  using Json = nlohmann::ordered_json;
  struct Found {
    Json json;
    bool is_exact = false;
  };

  [[nodiscard]] bool is_full() const { return records_.size() >= wanted_.limit; }

  // True: it is one of the answer's records.
  bool add(const Record& record) {
    if (!operate::matches(filter_, record, now_) || !says_it(wanted_, service_, record)) return false;
    if (!is_of(wanted_.client, record)) return false;
    std::optional<Why> why;
    if (wanted_.search) {
      why = why_of(*wanted_.search, wanted_.text, record);
      if (!why) return false;
    }
    Found found{.json = record_json(record, now_, false)};
    if (Json told = service_json(service_, record); told.is_object()) found.json["service"] = std::move(told);
    if (why) {
      found.json["match"] = why->word;
      found.is_exact = why->is_exact;
    }
    records_.push_back(std::move(found));
    return true;
  }

  std::optional<Error> look_up(const std::vector<std::string>& prefixes) {
    for (const std::string& key : keys_of(wanted_.text, wanted_.filter, access_.raw_scopes, prefixes)) {
      if (is_full() || place_.told.size() == most_found) break;
      const Answer found = blocking::get(*access_.store, key);
      if (found.status == AnswerStatus::failed) {
        if (found.error.kind != ErrorKind::corrupt) return found.error;
        continue;  // It is told when its page is read.
      }
      if (!found.record) continue;
      ++searched_;
      if (add(*found.record)) place_.told.push_back(mark_of(key));
    }
    return std::nullopt;
  }

  [[nodiscard]] bool is_told(const Record& record) const {
    return !place_.told.empty() && std::ranges::find(place_.told, mark_of(record.key)) != place_.told.end();
  }

  // Reads on from the place, and moves it.
  std::optional<http::Answer> read() {
    ListQuery query = operate::query_of(filter_, now_);
    for (unsigned reads = 0; reads < most_reads && !is_full(); ++reads) {
      query.cursor = place_.page;
      // Often every record of the page is one of the answer. If not, or when it has to be found behind a mark, a small
      // limit must not become many small requests.
      const bool is_first = reads == 0 && place_.marks.empty() && !wanted_.search;
      query.limit = is_first ? wanted_.limit : records_at_once;
      ListPage page = blocking::list(*access_.store, query);
      if (page.error) return list_problem(*page.error, query);
      take(std::move(page));
      if (ends_ || !place_.marks.empty()) break;
    }
    return std::nullopt;
  }

  void take(ListPage page) {
    const std::size_t first = behind(place_.marks, page.records);
    if (place_.marks.empty()) std::ranges::move(page.unreadable, std::back_inserter(unreadable_));
    for (std::size_t at = first; at < page.records.size(); ++at) {
      if (is_full()) {
        place_.marks = marks_before(page.records, at - 1);
        return;
      }
      ++searched_;
      if (!is_told(page.records[at])) add(page.records[at]);
    }
    place_.page = std::move(page.cursor);
    place_.marks.clear();
    ends_ = place_.page.empty();
  }

  // A cursor that the store does not know is the client's mistake, unless it could list nothing at all.
  [[nodiscard]] http::Answer list_problem(const Error& error, ListQuery query) const {
    if (error.kind != ErrorKind::misuse || query.cursor.empty()) return store_problem(error);
    query.cursor.clear();
    query.limit = 1;
    if (blocking::list(*access_.store, std::move(query)).error) return store_problem(error);
    return bad_request("after is of no list of this store: " + error.message);
  }

  const StoreAccess& access_;
  const Service& service_;
  const Wanted wanted_;
  const Time now_;
  const operate::Filter filter_;
  Place place_;
  bool ends_ = false;
  std::vector<Found> records_;
  std::vector<Error> unreadable_;
  std::uint64_t searched_ = 0;
};

}  // namespace

std::string client_in(std::string_view stored_key) {
  const std::string scope = key_parts(stored_key).scope;
  const auto last = scope.rfind(' ');
  // METHOD, ROUTE and the digest: a route has no space.
  if (last == std::string::npos || scope.find(' ') == last) return {};
  std::string client = scope.substr(last + 1);
  return is_client(client) ? client : std::string();
}

ListedFilter take_filter(Query& query) {
  ListedFilter wanted;
  FilterOptions& filter = wanted.filter;
  filter.state = query.take("state").value_or("");
  if (auto scope = query.take("scope")) {
    filter.scope = *std::move(scope);
    filter.has_scope = true;
  }
  filter.prefix = query.take("prefix").value_or("");
  filter.label = query.take("label").value_or("");
  filter.holder = query.take("holder").value_or("");
  filter.older_than = query.take("older-than").value_or("");
  filter.newer_than = query.take("newer-than").value_or("");
  if (const auto overdue = query.take("overdue")) {
    if (*overdue != "true" && *overdue != "false") throw wrong("overdue must be true or false");
    filter.overdue = *overdue == "true";
  }
  if (auto standing = query.take("standing")) {
    take_standing(*std::move(standing), filter);
    wanted.has_standing = true;
  }
  if (const auto says = query.take("reconciled")) {
    wanted.reconciled = finding_from_string(*says);
    if (!wanted.reconciled) {
      throw wrong("reconciled is '" + escaped(*says) + "'; it is " + std::string(finding_words));
    }
    if (filter.state.empty() && !filter.overdue) filter.state = "unknown";  // No others have an answer.
  }
  if (auto client = query.take("client")) {
    wanted.client = text::lower(*client);
    if (!is_client(wanted.client)) {
      throw wrong("client is not the digest of one: 64 hexadecimal digits, the end of a scope of a proxy's keys");
    }
  }
  if (auto searched = query.take("q")) {
    if (searched->empty()) throw wrong("q is empty: leave it out to list all records");
    wanted.search.emplace(*searched);
    wanted.text = *std::move(searched);
  }
  return wanted;
}

bool is_found(const ListedFilter& wanted, const Service& service, const Record& record) {
  return says_it(wanted, service, record) && is_of(wanted.client, record) &&
         (!wanted.search || why_of(*wanted.search, wanted.text, record));
}

http::Answer list_records(const StoreAccess& access, const Service& service, const std::vector<std::string>& prefixes,
                          std::string_view query) {
  return Listed(access, service, wanted_of(query)).answer(prefixes);
}

}  // namespace once::operators
