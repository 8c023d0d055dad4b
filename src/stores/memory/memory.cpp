#include <once/stores/memory.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include <boost/unordered/unordered_flat_set.hpp>

#include "platform/hashed_key.hpp"
#include "platform/word_lock.hpp"

namespace once::stores {

namespace {

constexpr std::size_t max_bytes = 64 * 1024 * 1024;
constexpr std::size_t max_page = 10'000;

class MemoryStore final : public Store {
 public:
  explicit MemoryStore(std::shared_ptr<Clock> clock)
      : clock_(std::move(clock)), utc_minus_uptime_(clock_->now().time_since_epoch() - clock_->uptime()) {}

  void insert(RecordPtr record, Done done) override {
    if (too_large(*record)) return done(refuse_size(*record));
    const HashedKey name(record->key);
    Shard& shard = shard_of(name);
    std::unique_lock lock(shard.mutex);
    const auto [found, is_new] = shard.records.insert(Entry{name.hash, std::move(record)});
    if (!is_new) return refuse(std::move(lock), shard, found, std::move(done));
    lock.unlock();
    done(Answer::ok(name.hash));
  }

  void replace(RecordPtr record, Seen seen, Done done) override {
    if (too_large(*record)) return done(refuse_size(*record));
    // The place of a record is its key's hash, which saves computing it. Without a place, or with another store's, the
    // record is found by its key.
    const HashedKey name = seen.place == 0 ? HashedKey(record->key) : HashedKey(record->key, seen.place);
    Shard& shard = shard_of(name);
    std::unique_lock lock(shard.mutex);
    const auto found = shard.records.find(name);
    if (!matches(shard, found, seen)) {
      if (seen.place != 0 && name.hash != HashedKey(record->key).hash) {
        lock.unlock();
        seen.place = 0;
        return replace(std::move(record), seen, std::move(done));
      }
      return refuse(std::move(lock), shard, found, std::move(done));
    }
    found->record.swap(record);
    lock.unlock();
    done(Answer::ok(name.hash));
  }

  void remove(std::string key, Seen seen, Done done) override {
    const HashedKey name(key);
    Shard& shard = shard_of(name);
    std::unique_lock lock(shard.mutex);
    const auto found = shard.records.find(name);
    if (!matches(shard, found, seen)) return refuse(std::move(lock), shard, found, std::move(done));
    shard.records.erase(found);
    lock.unlock();
    done(Answer::ok());
  }

  void get(std::string key, Done done) override {
    const HashedKey name(key);
    Shard& shard = shard_of(name);
    Answer answer = Answer::ok();
    {
      const std::lock_guard lock(shard.mutex);
      const auto found = shard.records.find(name);
      if (found != shard.records.end()) answer.record = found->record;
    }
    done(std::move(answer));
  }

  // In the order of the keys. The cursor is the last key of the page, with one byte before it, so it is never empty.
  void list(ListQuery query, Callback<void(ListPage)> done) override {
    std::map<std::string_view, const Record*> found;
    ListPage page;
    if (query.limit < 1 || query.limit > max_page) {
      page.error = {ErrorKind::misuse,
                    "a page holds 1 to " + std::to_string(max_page) + " records, not " + std::to_string(query.limit)};
      return done(std::move(page));
    }
    std::array<std::unique_lock<WordLock>, shards> locks;
    for (std::size_t i = 0; i < shards; ++i) locks[i] = std::unique_lock(shards_[i].mutex);
    const std::string_view after = query.cursor.empty() ? std::string_view() : std::string_view(query.cursor).substr(1);
    for (const Shard& shard : shards_) {
      for (const auto& [hash, record] : shard.records) {
        const std::string_view key = record->key;
        if (!key.starts_with(query.key_prefix)) continue;
        if (!query.cursor.empty() && key <= after) continue;
        if (query.state && record->state != *query.state) continue;
        if (query.expired_at && !is_expired(record->expires_at, *query.expired_at)) continue;
        found.emplace(key, record.get());
      }
    }
    for (const auto& [key, record] : found) {
      if (page.records.size() == query.limit) {
        page.cursor = "k" + page.records.back().key;
        break;
      }
      page.records.push_back(*record);
    }
    for (auto& lock : locks) lock.unlock();
    done(std::move(page));
  }

  void sweep(Time now, std::size_t limit, Callback<void(SweepAnswer)> done) override {
    SweepAnswer answer;
    for (Shard& shard : shards_) {
      const std::lock_guard lock(shard.mutex);
      for (auto it = shard.records.begin(); it != shard.records.end();) {
        if (!is_expired(it->record->expires_at, now)) {
          ++it;
        } else if (answer.removed == limit) {
          answer.more = true;
          break;
        } else {
          shard.records.erase(it++);
          ++answer.removed;
        }
      }
    }
    done(std::move(answer));
  }

  [[nodiscard]] std::optional<StoreTime> time() const noexcept override { return time_at(*clock_, clock_->uptime()); }

  [[nodiscard]] std::optional<StoreTime> time_at(const Clock& clock, Uptime uptime) const noexcept override {
    if (&clock != clock_.get()) return time();
    return StoreTime{Time(std::chrono::floor<Millis>(uptime + utc_minus_uptime_)), Millis{0}};
  }

  [[nodiscard]] Capabilities capabilities() const noexcept override {
    return {.max_record_bytes = max_bytes,
            .durable = false,
            .shared = false,
            .tells_time = true,
            .default_skew = Millis{0},
            .keeps_compressed = true};
  }

  [[nodiscard]] std::string name() const override { return "memory:"; }

 private:
  struct Entry {
    std::size_t hash;
    mutable RecordPtr record;  // Replaced only by records of the same key.
  };
  struct EntryHash {
    using is_transparent = void;
    using is_avalanching = void;  // The hash is mixed well enough.
    std::size_t operator()(const Entry& entry) const noexcept { return entry.hash; }
    std::size_t operator()(const HashedKey& name) const noexcept { return name.hash; }
  };
  struct EntryEqual {
    using is_transparent = void;
    bool operator()(const Entry& a, const Entry& b) const noexcept {
      return a.hash == b.hash && a.record->key == b.record->key;
    }
    bool operator()(const HashedKey& a, const Entry& b) const noexcept {
      return a.hash == b.hash && a.key == b.record->key;
    }
  };
  // Stored in one block: a chain of nodes would cause cache misses.
  using Records = boost::unordered_flat_set<Entry, EntryHash, EntryEqual>;
  struct Shard {
    mutable WordLock mutex;
    Records records;
  };
  static constexpr std::size_t shards = 16;

  Shard& shard_of(const HashedKey& name) noexcept { return shards_[name.shard(shards)]; }

  static bool too_large(const Record& record) { return record_bytes(record) > max_bytes; }

  static Answer refuse_size(const Record& record) {
    return Answer::cannot_keep("a record of " + std::to_string(record_bytes(record)) +
                               " bytes is over the memory store's limit of " + std::to_string(max_bytes));
  }

  static bool matches(const Shard& shard, Records::const_iterator found, const Seen& seen) {
    return found != shard.records.end() && found->record->owner == seen.owner &&
           found->record->revision == seen.revision;
  }

  void refuse(std::unique_lock<WordLock> lock, const Shard& shard, Records::const_iterator found, Done done) {
    Answer answer = Answer::refuse(found == shard.records.end() ? nullptr : found->record);
    lock.unlock();
    done(std::move(answer));
  }

  std::shared_ptr<Clock> clock_;
  std::chrono::nanoseconds utc_minus_uptime_;
  std::array<Shard, shards> shards_;
};

}  // namespace

std::unique_ptr<Store> make_memory_store(std::shared_ptr<Clock> clock) {
  return std::make_unique<MemoryStore>(std::move(clock));
}

}  // namespace once::stores
