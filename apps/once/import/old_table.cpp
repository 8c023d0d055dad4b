#include "import/old_table.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory_resource>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <once/decide.hpp>
#include <once/error.hpp>
#include <once/key.hpp>
#include <once/keys/key_deriver.hpp>

#include "import/importer.hpp"
#include "output/text.hpp"
#include "platform/thread.hpp"
#include "text/ascii.hpp"
#include "text/json.hpp"
#include "text/json_write.hpp"
#include "text/utf8.hpp"

namespace once::cli::importing {

namespace {

namespace json = text::json;

// By so much the clock of the old program may be behind ours: until then a row has not expired.
constexpr Millis most_apart{60'000};

// ---- Rows and keys.

[[noreturn]] void unclear(const std::string& why) { throw Exception(ErrorKind::corrupt, why); }

// Empty: it is no text and no number, or not there.
std::optional<std::string> column_text(const Row& row, const std::string& column) {
  std::pmr::monotonic_buffer_resource arena;
  json::Value value;
  if (!json::try_parse(row.json, {.exact_numbers = false}, arena, value)) return std::nullopt;
  const json::Value found = value.member(column);
  if (found.kind() != json::Kind::string && found.kind() != json::Kind::number) return std::nullopt;
  return std::string(found.text());
}

bool has_column(const Row& row, const std::string& column) {
  std::pmr::monotonic_buffer_resource arena;
  json::Value value;
  if (!json::try_parse(row.json, {.exact_numbers = false}, arena, value)) return false;
  return std::ranges::any_of(value.members(), [&](const json::Member& member) { return member.name == column; });
}

// For a log, where a whole key may be too much: an address, a card.
std::string beginning_of(const std::string& stored) {
  constexpr std::size_t shown_bytes = 4;
  const Key key = Key::from_stored(stored);
  return ", as a key of " + std::to_string(key.name().size()) + " bytes that begins with '" +
         escaped(key.name().substr(0, shown_bytes)) + "'";
}

// What a table's rows mean.
class Reading {
 public:
  explicit Reading(OldTableOptions table) : table_(std::move(table)), mapping_(table_.mapping) {
    if (!table_.mapping.hash.empty()) deriver_.emplace(keys::Recipe{.hash = table_.mapping.hash, .makes_label = false});
  }

  [[nodiscard]] const OldTableOptions& table() const noexcept { return table_; }

  // What the old table's column has for this key. Throws Exception(corrupt) if that cannot be told.
  [[nodiscard]] std::string text_of(const Record& claim) const {
    const Key key = Key::from_stored(claim.key);
    std::string text = table_.mapping.key_prefix + std::string(key.name());
    if (deriver_) text = text_of_digest(claim, key);
    if (!text::valid_utf8(text) || text.find('\0') != std::string::npos) {
      unclear("the key is not a text that a table could have");
    }
    return text;
  }

  // Which of the rows, found by `text`, stands for the key, if any counts.
  [[nodiscard]] OldRow choose(const std::vector<Row>& rows, const std::string& text, const std::string& key, Time now,
                              const std::string& from) const {
    OldRow chosen;
    bool has_other = false;
    for (const Row& row : rows) {
      Mapped mapped = map(row, now, from);
      if (mapped.kind == Mapped::Kind::refused) unclear("its row for this key cannot be used: " + mapped.why);
      if (mapped.kind != Mapped::Kind::record) continue;  // The old program would run it.
      if (deriver_ && stands_for(row, text, mapped.record, key)) mapped.record.key = key;
      if (mapped.record.key != key) {
        has_other = true;
        continue;
      }
      if (chosen.kind == OldRow::Kind::found) unclear("it has two rows for this key");
      chosen.kind = OldRow::Kind::found;
      chosen.record = std::move(mapped.record);
    }
    if (chosen.kind == OldRow::Kind::absent && has_other) {
      unclear("it has a row for this key, but with another scope or in another spelling");
    }
    return chosen;
  }

  // What some rows of the table say. Throws Exception(misuse) if none of them could be used.
  Examined examine(Finder& finder, Time now) const {
    const std::vector<Row> rows = finder.some();
    std::size_t usable = 0;
    std::string why;
    std::string example;
    bool is_missed = false;
    std::set<std::string> keys;
    for (const Row& row : rows) {
      const Mapped mapped = map(row, now, finder.name());
      if (mapped.kind == Mapped::Kind::refused) {
        why = row.name + ": " + mapped.why;
        continue;
      }
      ++usable;
      // Such a column names no operations: a look would miss them all, and every one would run.
      if (mapped.kind == Mapped::Kind::record && !keys.insert(mapped.record.key).second) {
        misuse(finder.name() + ": two of its first rows have one key in '" + table_.mapping.key + "'" +
               beginning_of(mapped.record.key) +
               ": name the column that tells operations apart, and by scope-from what else does");
      }
      if (mapped.kind == Mapped::Kind::may_run || !example.empty()) continue;
      const auto text = column_text(row, table_.mapping.key);
      const std::vector<Row> again = text ? finder.find(*text) : std::vector<Row>();
      const bool is_found = std::ranges::any_of(
          again, [&](const Row& found) { return map(found, now, finder.name()).record.key == mapped.record.key; });
      is_missed = is_missed || !is_found;
      if (is_found) example = beginning_of(mapped.record.key);
    }
    const std::string count = std::to_string(rows.size());
    if (usable == 0 && !rows.empty()) {
      misuse(finder.name() + ": none of its first " + count + " rows can be used; " + why);
    }
    if (is_missed && example.empty()) {
      misuse(finder.name() + ": rows are not found by the text in '" + table_.mapping.key + "'");
    }
    if (example.empty()) look_for_nothing(finder);
    if (rows.empty()) return {.found = finder.name() + " has no rows", .notice = "it has no rows, so every key is new"};
    return {.found = finder.name() + ": " + std::to_string(usable) + " of its first " + count + " rows can be used" +
                     example + (why.empty() ? "" : "; not " + why),
            .notice = absent_columns(rows) + common_beginning(keys)};
  }

 private:
  // A message's 17 and a column's "17" have different digests, but such a column keeps both as the same text.
  [[nodiscard]] bool stands_for(const Row& row, const std::string& text, const Record& mapped,
                                const std::string& key) const {
    return column_text(row, table_.mapping.key) == text &&
           Key::from_stored(mapped.key).scope() == Key::from_stored(key).scope();
  }

  // The column may be missing, or of another type, though no row has shown it yet.
  void look_for_nothing(Finder& finder) const {
    try {
      finder.find(table_.mapping.key_prefix + "once");
    } catch (const Exception& error) {
      if (error.kind() != ErrorKind::corrupt) throw;  // Its type has no such value: it is there.
    }
  }

  // Of those that the file names: a row without its expiry would count for ever, and one without its result would
  // have none. Other parts of a row refuse it when they are missing.
  [[nodiscard]] std::string absent_columns(const std::vector<Row>& rows) const {
    const MappingOptions& named = table_.mapping;
    std::string absent;
    for (const std::string& column :
         {named.result, named.expires, named.http_headers, named.error, named.created, named.finished, named.holder}) {
      if (!is_column(column)) continue;
      if (std::ranges::any_of(rows, [&](const Row& row) { return has_column(row, column); })) continue;
      absent += (absent.empty() ? "none of its first rows has " : ", ") + escaped(column);
    }
    return absent;
  }

  // "create_order#" of "create_order#17" and "create_order#18". Callers seldom send such a part.
  [[nodiscard]] std::string common_beginning(const std::set<std::string>& keys) const {
    if (keys.size() < 2 || !table_.mapping.hash.empty()) return {};
    const Key first = Key::from_stored(*keys.begin());
    std::string_view common = first.name();
    for (const std::string& stored : keys) {
      const Key key = Key::from_stored(stored);
      const auto differs = std::ranges::mismatch(common, key.name());
      common = common.substr(0, static_cast<std::size_t>(differs.in1 - common.begin()));
    }
    common = common.substr(0, common.find_last_of("#:/|") + 1);
    if (common.empty()) return {};
    const std::string shown = escaped(common);
    return "all its first keys begin with '" + shown + "': unless callers send that too, write key-prefix = \"" +
           table_.mapping.key_prefix + shown + "\"";
  }

  // By a clock that is behind ours; so the record counts as long as the row.
  [[nodiscard]] Mapped map(const Row& row, Time now, const std::string& from) const {
    Mapped mapped = mapping_.map(row, now - most_apart, from);
    Time& expires_at = mapped.record.expires_at;
    expires_at = expires_at > never - most_apart ? never : expires_at + most_apart;
    return mapped;
  }

  // The selected text is kept as the label, if the program is told to; its digest shows whether that is all of it.
  [[nodiscard]] std::string text_of_digest(const Record& claim, const Key& key) const {
    const std::string& label = claim.label;
    const auto gives_key = [&](const std::string& selected) {
      const auto derived = deriver_->derive(selected);
      return derived.key && derived.key->name() == key.name();
    };
    if (text::valid_utf8(label) && !label.empty()) {
      if (gives_key(json::quoted(label))) return label;
      std::pmr::monotonic_buffer_resource arena;
      json::Value number;
      const bool is_number =
          json::try_parse(label, {.exact_numbers = false}, arena, number) && number.kind() == json::Kind::number;
      if (is_number && gives_key(label)) return label;
    }
    unclear(
        "the key is a digest, and the text that it was made of is not its label: let the key be one text or number, "
        "and keep it (once sqs --label all)");
  }

  const OldTableOptions table_;
  const Mapping mapping_;
  std::optional<keys::KeyDeriver> deriver_;  // Of keys that are digests.
};

// ---- Looks.

struct Look {
  RecordPtr claim;
  Time now{};
  Callback<void(OldRow)> done;  // Guarded by the mutex. Empty: it has ended.
  Timers::Id timer = 0;
};

// What the workers share with the object.
class Desk : public std::enable_shared_from_this<Desk> {
 public:
  explicit Desk(LookerOptions options) : reading_(std::move(options.table)), options_(std::move(options)) {}

  void look(RecordPtr claim, Time now, Callback<void(OldRow)> done) {
    const auto look = std::make_shared<Look>();
    look->claim = std::move(claim);
    look->now = now;
    look->done = std::move(done);
    try {
      options_.timers->make_ready();
      const Millis timeout = reading_.table().finder.timeout;
      look->timer = options_.timers->at(options_.clock->uptime() + timeout, [desk = weak_from_this(), look, timeout] {
        if (const auto at = desk.lock()) at->give_up(look, timeout);
      });
      wait_for_worker(look);
    } catch (const Exception& error) {
      end(*look, failed(ErrorKind::unavailable, error.what()));
    }
  }

  // Until leave().
  void work() {
    std::unique_ptr<Finder> finder;
    for (;;) {
      std::shared_ptr<Look> look;
      {
        std::unique_lock lock(mutex_);
        ++idle_;
        changed_.wait(lock, [&] { return is_left_ || !waiting_.empty(); });
        --idle_;
        if (is_left_) return;
        look = std::move(waiting_.front());
        waiting_.pop_front();
        if (!look->done) continue;
      }
      OldRow row;
      try {
        row = answer(finder, *look);
      } catch (const Exception& error) {
        if (error.kind() != ErrorKind::corrupt) finder.reset();
        row = failed(error.kind() == ErrorKind::corrupt ? ErrorKind::corrupt : ErrorKind::unavailable, error.what());
      } catch (const std::exception& error) {
        finder.reset();
        row = failed(ErrorKind::unavailable, error.what());
      }
      options_.timers->cancel(look->timer);
      end(*look, std::move(row));
    }
  }

  void leave() {
    const std::lock_guard lock(mutex_);
    is_left_ = true;
    changed_.notify_all();
  }

 private:
  void wait_for_worker(const std::shared_ptr<Look>& look) {
    std::unique_lock lock(mutex_);
    waiting_.push_back(look);
    changed_.notify_one();
    if (waiting_.size() <= idle_ || workers_ == options_.max_threads) return;
    ++workers_;
    lock.unlock();
    try {
      start_thread_of("the old table", [desk = shared_from_this()] { desk->work(); }).detach();
    } catch (const Exception&) {  // Without any, nobody would take it. The caller says why.
      lock.lock();
      if (--workers_ == 0) throw;
    }
  }

  // A connection may have been closed by the other side since its last use: then once more, on a new one, unless the
  // time is over. Otherwise a server that hangs would keep the thread for twice as long.
  OldRow answer(std::unique_ptr<Finder>& finder, const Look& look) {
    const std::string text = reading_.text_of(*look.claim);
    std::vector<Row> rows;
    for (bool is_asked = false; !is_asked;) {
      const bool is_new = finder == nullptr;
      if (is_new) finder = opened();
      try {
        rows = finder->find(text);
        is_asked = true;
      } catch (const Exception& error) {
        finder.reset();
        const bool may_pass = error.kind() != ErrorKind::misuse && error.kind() != ErrorKind::corrupt;
        if (is_new || !may_pass || has_ended(look)) throw;
      }
    }
    OldRow row = reading_.choose(rows, text, look.claim->key, look.now, finder->name());
    row.origin = origin_of(finder->name(), finder->source());
    return row;
  }

  std::unique_ptr<Finder> opened() {
    std::unique_ptr<Finder> finder = options_.open(reading_.table().finder);
    const std::lock_guard lock(opening_);
    if (!is_examined_) {
      const Examined examined = reading_.examine(*finder, options_.clock->now());
      is_examined_ = true;
      options_.on_open(examined);
    }
    return finder;
  }

  [[nodiscard]] OldRow failed(ErrorKind kind, const std::string& why) const {
    OldRow row;
    row.kind = OldRow::Kind::failed;
    row.error = {kind, "the old table (fallback=" + escaped(reading_.table().name) +
                           ") does not say whether it has this operation, so it was not begun: " + why};
    return row;
  }

  // A look that nobody has begun must not wait longer than its caller: all workers may hang for hours.
  void give_up(const std::shared_ptr<Look>& look, Millis timeout) {
    {
      const std::lock_guard lock(mutex_);
      const auto at = std::ranges::find(waiting_, look);
      if (at != waiting_.end()) waiting_.erase(at);
    }
    end(*look, failed(ErrorKind::unavailable, "no answer within " + show_duration(timeout)));
  }

  bool has_ended(const Look& look) {
    const std::lock_guard lock(mutex_);
    return !look.done;
  }

  // Called by the worker and by the timer: the first call counts.
  void end(Look& look, OldRow row) {
    Callback<void(OldRow)> done;
    {
      const std::lock_guard lock(mutex_);
      done = std::move(look.done);
      look.done = nullptr;
    }
    if (done) done(std::move(row));
  }

  const Reading reading_;
  const LookerOptions options_;  // Without its table.

  std::mutex opening_;  // Held while a worker examines the table. Guards the next.
  bool is_examined_ = false;

  std::mutex mutex_;  // Guards the following members.
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Look>> waiting_;
  std::size_t idle_ = 0;
  unsigned workers_ = 0;
  bool is_left_ = false;
};

class LookedUpTable final : public OldTable {
 public:
  explicit LookedUpTable(LookerOptions options) : desk_(std::make_shared<Desk>(std::move(options))) {}
  LookedUpTable(const LookedUpTable&) = delete;
  LookedUpTable& operator=(const LookedUpTable&) = delete;
  ~LookedUpTable() override { desk_->leave(); }

  void look(RecordPtr claim, Time now, Callback<void(OldRow)> done) override {
    desk_->look(std::move(claim), now, std::move(done));
  }

 private:
  const std::shared_ptr<Desk> desk_;
};

}  // namespace

std::unique_ptr<OldTable> make_old_table(LookerOptions options) {
  return std::make_unique<LookedUpTable>(std::move(options));
}

Examined examine(const OldTableOptions& table) {
  const std::unique_ptr<Finder> finder = open_finder(table.finder);
  return Reading(table).examine(*finder, system_clock()->now());
}

}  // namespace once::cli::importing
