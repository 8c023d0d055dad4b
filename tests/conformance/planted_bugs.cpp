// Shows that the conformance suite finds bugs: runs it on a small correct store, which must pass, and on the same store
// with one planted bug at a time, which must fail. Prints which test caught which bug.
//
//   planted_bugs          the table; fails if a bug got away or the right store was blamed. The first test that fails
//   is
//                         enough: after it the others of a bug get no store.
//   planted_bugs NAME     one bug, with everything that the suite says about it
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <condition_variable>
#include <iomanip>
#include <iostream>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

#include <once/testing/conformance.hpp>
#include <once/testing/records.hpp>

namespace {

using once::Answer;
using once::Callback;
using once::Done;
using once::ErrorKind;
using once::ListPage;
using once::ListQuery;
using once::Millis;
using once::Record;
using once::RecordPtr;
using once::Seen;
using once::share;
using once::State;
using once::SweepAnswer;
using once::Time;

// name, what it does wrong
#define BUGS(X)                                                                       \
  X(none, "nothing: the right store")                                                 \
  X(insert_overwrites, "insert writes over what is there")                            \
  X(insert_over_expired, "insert writes over an expired record")                      \
  X(insert_twice_by_owner, "insert says done if the record is there and the owner's") \
  X(insert_refusal_empty, "a refused insert gives no record")                         \
  X(insert_refusal_is_mine, "a refused insert gives back the caller's record")        \
  X(insert_not_atomic, "insert looks, lets go, and writes")                           \
  X(replace_ignores_owner, "replace looks at the revision only")                      \
  X(replace_ignores_revision, "replace looks at the owner only")                      \
  X(replace_either, "replace is content with owner or revision")                      \
  X(replace_older_revision, "replace lets older revisions through")                   \
  X(replace_owner_half, "replace compares half of the owner")                         \
  X(replace_revision_32_bits, "replace compares 32 bits of the revision")             \
  X(replace_creates, "replace of nothing inserts")                                    \
  X(replace_nobody_is_anybody, "replace lets the zero owner through")                 \
  X(replace_respects_lease, "replace refuses while the lease of another lives")       \
  X(replace_respects_token, "replace refuses a token that falls")                     \
  X(replace_respects_fingerprint, "replace refuses another fingerprint")              \
  X(replace_counts_revision, "replace counts the revision by itself")                 \
  X(replace_keeps_created_at, "replace keeps the first created_at")                   \
  X(replace_merges, "replace keeps the old value where the new one is empty")         \
  X(replace_refusal_empty, "a refused replace gives no record")                       \
  X(replace_refusal_stale, "a refused replace gives the version before")              \
  X(replace_refusal_says_done, "a refused replace says done")                         \
  X(replace_refusal_writes, "a refused replace writes the note")                      \
  X(replace_not_atomic, "replace looks, lets go, and writes")                         \
  X(with_alone, "replace_with writes the record alone")                               \
  X(with_first, "replace_with writes the companion, then looks")                      \
  X(with_apart, "replace_with looks, writes the companion, lets go, and writes")      \
  X(with_again, "replace_with of what is there writes the companion again")           \
  X(with_any, "replace_with takes a companion that it does not know for none")        \
  X(with_declined_record, "a declined companion, and the record is written")          \
  X(with_declined_companion, "a companion is written, and then declined")             \
  X(with_declined_plain, "a declined companion is a failure of the record")           \
  X(with_declined_misuse, "a condition that does not hold is misuse")                 \
  X(with_declined_first, "a declined companion hides a refusal")                      \
  X(with_large_declined, "too large a record is declined")                            \
  X(with_outage, "unavailable, and yet the companion is written")                     \
  X(remove_unconditional, "remove looks at nothing")                                  \
  X(remove_ignores_owner, "remove looks at the revision only")                        \
  X(remove_ignores_revision, "remove looks at the owner only")                        \
  X(remove_nothing_done, "remove of nothing says done")                               \
  X(remove_refusal_empty, "a refused remove gives no record")                         \
  X(remove_refusal_removes, "a refused remove removes")                               \
  X(remove_only_hides, "a removed key cannot be inserted again")                      \
  X(place_alone, "a write trusts its place and looks at no key")                      \
  X(place_required, "a write with another place is refused")                          \
  X(place_shortcut, "a right place replaces the comparison of the revision")          \
  X(refusal_of_first, "refusals show another record")                                 \
  X(drops_state, "keeps no unknown: reads it as failed")                              \
  X(drops_owner, "keeps 15 bytes of the owner")                                       \
  X(drops_token, "keeps no token")                                                    \
  X(drops_attempt, "keeps no attempt")                                                \
  X(drops_lease_until, "keeps no lease_until")                                        \
  X(drops_created_at, "keeps no created_at")                                          \
  X(drops_finished_at, "keeps no finished_at")                                        \
  X(drops_fingerprint, "keeps no fingerprint")                                        \
  X(drops_holder, "keeps no holder")                                                  \
  X(drops_note, "keeps no note")                                                      \
  X(drops_steps, "keeps no steps")                                                    \
  X(drops_step_results, "keeps no step's result")                                     \
  X(drops_step_order, "sorts the steps")                                              \
  X(drops_empty_steps, "keeps no step without a result")                              \
  X(drops_result, "keeps no result bytes")                                            \
  X(drops_failed_result, "keeps result bytes of completed records only")              \
  X(drops_content_type, "keeps no content type")                                      \
  X(drops_placement, "keeps no placement")                                            \
  X(drops_compressed, "reads compressed results as inlined")                          \
  X(drops_location, "keeps no location")                                              \
  X(drops_size, "keeps 32 bits of an offloaded result's size")                        \
  X(drops_digest, "keeps no digest")                                                  \
  X(drops_failure_code, "keeps no failure code")                                      \
  X(drops_failure_message, "keeps no failure message")                                \
  X(nul_ends_key, "keys end at a NUL")                                                \
  X(nul_ends_result, "results end at a NUL")                                          \
  X(nul_ends_step, "step results end at a NUL")                                       \
  X(nul_ends_text, "holder and note end at a NUL")                                    \
  X(key_case, "keys do not tell case")                                                \
  X(key_padding, "keys do not tell trailing spaces")                                  \
  X(key_ascii, "bytes above 0x7F become ? in keys")                                   \
  X(key_short, "keys count to 255 bytes")                                             \
  X(result_text, "bytes above 0x7F become ? in results")                              \
  X(result_short, "results are cut at 64 KiB")                                        \
  X(number_as_double, "tokens go through a double")                                   \
  X(attempt_16_bits, "attempts have 16 bits")                                         \
  X(time_in_seconds, "times are kept in seconds")                                     \
  X(never_is_year_9999, "never is stored as the year 9999")                           \
  X(fingerprint_32_bytes, "fingerprints are cut at 32 bytes")                         \
  X(too_large_kept, "too large records are written")                                  \
  X(too_large_unavailable, "too large records are unavailable")                       \
  X(too_large_not_unfit, "too large records are misuse like any other")               \
  X(too_large_then_written, "too large records are misuse, and written")              \
  X(too_large_throws, "too large records throw")                                      \
  X(get_cached, "get keeps what it read, for each connection")                        \
  X(get_refuses_nothing, "get of nothing is refused")                                 \
  X(get_hides_expired, "get hides what expired long ago")                             \
  X(hash_collides, "keys with the same length and last byte are one")                 \
  X(done_twice, "replace calls done twice")                                           \
  X(done_never, "a refused remove of nothing calls nothing")                          \
  X(done_under_lock, "done is called under the lock")                                 \
  X(list_skips_at_page_end, "a page begins one record too late")                      \
  X(list_repeats_at_page_end, "a page begins one record too early")                   \
  X(list_offset_cursor, "the cursor counts records")                                  \
  X(list_one_use_cursor, "a cursor works once")                                       \
  X(list_ignores_state, "list ignores the state")                                     \
  X(list_ignores_prefix, "list ignores the prefix")                                   \
  X(list_ignores_expiry, "list ignores expired_at")                                   \
  X(list_expired_exclusive, "list takes expired_at for the first live moment")        \
  X(list_never_expires, "list takes never for a moment")                              \
  X(list_prefix_pattern, "% and _ in the prefix are wildcards")                       \
  X(list_prefix_case, "the prefix does not tell case")                                \
  X(list_prefix_range, "the prefix's range ends wrongly at 0xFF")                     \
  X(list_prefix_nul, "the prefix ends at a NUL")                                      \
  X(list_page_too_long, "a page holds one record too many")                           \
  X(list_limit_unchecked, "a limit out of range is taken")                            \
  X(list_without_results, "list leaves results out")                                  \
  X(list_endless, "the last page has a cursor")                                       \
  X(list_filters_after_limit, "a page without a match is the last")                   \
  X(list_hides_foreign, "list leaves foreign bytes out")                              \
  X(sweep_too_early, "sweep takes what expires a millisecond later")                  \
  X(sweep_exclusive, "sweep leaves what expires now")                                 \
  X(sweep_never, "sweep takes never for a moment")                                    \
  X(sweep_unfinished_forever, "sweep leaves in_progress records")                     \
  X(sweep_lapsed, "sweep takes lapsed claims")                                        \
  X(sweep_ignores_limit, "sweep ignores its limit")                                   \
  X(sweep_says_no_more, "sweep says at its limit that nothing is left")               \
  X(sweep_always_more, "sweep says always that there is more")                        \
  X(sweep_counts_wrong, "sweep counts what it saw")                                   \
  X(sweep_first_expiry, "sweep looks at the expiry of the insert")                    \
  X(sweep_not_atomic, "sweep looks, lets go, and removes")                            \
  X(close_loses_last, "closing loses the last write")                                 \
  X(close_undoes_removes, "closing brings removed records back")                      \
  X(connections_apart, "a connection sees what was there when it was opened")         \
  X(says_shared_wrongly, "says that it is not shared")                                \
  X(says_durable_wrongly, "says that it is not durable")                              \
  X(says_time_wrongly, "says that it tells no time, and does")                        \
  X(time_goes_back, "its time goes back")                                             \
  X(says_compressed_wrongly, "says it keeps no compressed results, and keeps them")   \
  X(says_too_small, "says that it keeps next to nothing")                             \
  X(foreign_is_nothing, "foreign bytes are taken for nothing")                        \
  X(foreign_overwritten, "writes go over foreign bytes")                              \
  X(foreign_is_unavailable, "foreign bytes are unavailable")                          \
  X(foreign_spoils_all, "foreign bytes make every get fail")                          \
  X(foreign_removed, "says that foreign bytes are corrupt, and removes them")         \
  X(outage_writes, "unavailable, and yet written")                                    \
  X(outage_forgets, "done in an outage, and forgotten")                               \
  X(outage_for_good, "does not recover from an outage")                               \
  X(outage_is_nothing, "get finds nothing in an outage")                              \
  X(outage_is_misuse, "an outage is misuse")

enum class Bug {
#define NAME(name, text) name,
  BUGS(NAME)
#undef NAME
};

struct Planted {
  Bug bug;
  const char* name;
  const char* text;
};

constexpr Planted all_bugs[] = {
#define ROW(name, text) {Bug::name, #name, text},
    BUGS(ROW)
#undef ROW
};

constexpr std::size_t max_bytes = 256 * 1024;
constexpr std::string_view foreign_mark = "not a record";

struct Kept {
  Record record;
  std::uint64_t place = 0;
  Time first_expiry{};
  std::optional<Record> before;
};

struct Books {
  std::mutex mutex;
  std::map<std::string, Kept> records;
  std::set<std::string> gone;
  std::map<std::string, Kept> removed;
  std::string last_written;
  std::uint64_t places = 0;
  std::size_t companions = 0;  // Written.
  bool down = false;
  bool was_down = false;
  std::condition_variable written;
};

struct Plus final : once::Companion {
  explicit Plus(bool no) : declined(no) {}
  bool declined;
};

std::string to_nul(const std::string& text) { return text.substr(0, text.find('\0')); }

std::string to_ascii(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) > 0x7F) c = '?';
  }
  return text;
}

std::string to_lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// As SQL's LIKE does it.
bool is_like(std::string_view text, std::string_view pattern) {
  if (pattern.empty()) return text.empty();
  if (pattern.front() == '%') {
    for (std::size_t i = 0; i <= text.size(); ++i) {
      if (is_like(text.substr(i), pattern.substr(1))) return true;
    }
    return false;
  }
  return !text.empty() && (pattern.front() == '_' || pattern.front() == text.front()) &&
         is_like(text.substr(1), pattern.substr(1));
}

class SmallStore final : public once::Store {
 public:
  SmallStore(std::shared_ptr<Books> books, Bug bug) : books_(std::move(books)), bug_(bug) {
    if (bug_ == Bug::connections_apart) {
      auto copy = std::make_shared<Books>();
      const std::lock_guard lock(books_->mutex);
      copy->records = books_->records;
      copy->places = books_->places;
      books_ = copy;
    }
  }
  SmallStore(const SmallStore&) = delete;
  SmallStore& operator=(const SmallStore&) = delete;

  ~SmallStore() override {
    const std::lock_guard lock(books_->mutex);
    if (bug_ == Bug::close_loses_last) books_->records.erase(books_->last_written);
    if (bug_ == Bug::close_undoes_removes) books_->records.merge(books_->removed);
  }

  void insert(RecordPtr asked, Done done) override {
    Record record = *asked;
    run(std::move(done), record.key, [&](Hold& hold) -> Answer {
      if (auto error = size_error(record)) return std::move(*error);
      const std::string key = stored_key(record.key);
      const auto found = books_->records.find(key);
      bool taken = found != books_->records.end();
      if (bug_ == Bug::insert_not_atomic) hold.let_go();
      if (taken && is(Bug::insert_overwrites)) taken = false;
      if (taken && is(Bug::insert_over_expired)) taken = found->second.record.expires_at > record.created_at;
      if (taken && is(Bug::insert_twice_by_owner) && found->second.record.owner == record.owner) return Answer::ok();
      if (is(Bug::remove_only_hides) && books_->gone.contains(key)) return Answer::refuse(nullptr);
      if (taken) {
        if (is(Bug::insert_refusal_empty)) return Answer::refuse(nullptr);
        if (is(Bug::insert_refusal_is_mine)) return Answer::refuse(std::move(asked));
        return refusal(key);
      }
      return Answer::ok(write(key, std::move(record)));
    });
  }

  void replace(RecordPtr asked, Seen seen, Done done) override { put_over(asked, seen, nullptr, std::move(done)); }

  void replace_with(RecordPtr asked, Seen seen, std::shared_ptr<const once::Companion> companion, Done done) override {
    const auto plus = std::dynamic_pointer_cast<const Plus>(companion);
    if (plus == nullptr && !is(Bug::with_any)) {
      return once::Store::replace_with(std::move(asked), seen, std::move(companion), std::move(done));
    }
    if (is(Bug::with_outage)) {
      const std::lock_guard lock(books_->mutex);
      if (books_->down) ++books_->companions;
    }
    put_over(asked, seen, plus.get(), std::move(done));
  }

  void put_over(const RecordPtr& asked, Seen seen, const Plus* plus, Done done) {
    Record record = *asked;
    const bool twice = is(Bug::done_twice);
    Answer again;
    auto shared = std::make_shared<Done>(std::move(done));
    run([shared](Answer answer) { (*shared)(std::move(answer)); }, record.key,
        [&](Hold& hold) -> Answer {
          if (auto error = size_error(record)) {
            error->declined = plus != nullptr && is(Bug::with_large_declined);
            return std::move(*error);
          }
          const std::string key = target(stored_key(record.key), seen);
          const auto found = books_->records.find(key);
          if (found == books_->records.end()) {
            if (is(Bug::replace_creates)) return Answer::ok(write(key, std::move(record)));
            return Answer::refuse(nullptr);
          }
          const Record there = found->second.record;
          const bool may = allows(found->second, seen, record);
          if (plus != nullptr) {
            if (auto ended = commit(*plus, may, there == record, hold)) return std::move(*ended);
          }
          if (bug_ == Bug::replace_not_atomic) hold.let_go();
          if (!may) {
            if (is(Bug::replace_refusal_empty)) return Answer::refuse(nullptr);
            if (is(Bug::replace_refusal_stale) && found->second.before)
              return Answer::refuse(share(*found->second.before));
            if (is(Bug::replace_refusal_says_done)) return Answer::ok();
            if (is(Bug::replace_refusal_writes)) {
              Answer answer = refusal(key);
              found->second.record.note = record.note;
              return answer;
            }
            return refusal(key);
          }
          if (is(Bug::replace_counts_revision)) record.revision = there.revision + 1;
          if (is(Bug::replace_keeps_created_at)) record.created_at = there.created_at;
          if (is(Bug::replace_merges) && record.note.empty()) record.note = there.note;
          return Answer::ok(write(key, std::move(record)));
        });
    if (twice) (*shared)(Answer::ok());
  }

  void remove(std::string key, Seen seen, Done done) override {
    bool silent = false;
    auto shared = std::make_shared<Done>(std::move(done));
    run(
        [shared, &silent](Answer answer) {
          if (!silent) (*shared)(std::move(answer));
        },
        key,
        [&](Hold&) -> Answer {
          const std::string name = target(stored_key(key), seen);
          const auto found = books_->records.find(name);
          if (found == books_->records.end()) {
            silent = is(Bug::done_never);
            return is(Bug::remove_nothing_done) ? Answer::ok() : Answer::refuse(nullptr);
          }
          const Record& there = found->second.record;
          bool may = there.owner == seen.owner && there.revision == seen.revision;
          if (is(Bug::remove_unconditional)) may = true;
          if (is(Bug::remove_ignores_owner)) may = there.revision == seen.revision;
          if (is(Bug::remove_ignores_revision)) may = there.owner == seen.owner;
          if (is(Bug::place_required) && seen.place != 0 && seen.place != found->second.place) may = false;
          if (!may) {
            Answer answer = is(Bug::remove_refusal_empty) ? Answer::refuse(nullptr) : refusal(name);
            if (is(Bug::remove_refusal_removes)) books_->records.erase(found);
            return answer;
          }
          if (is(Bug::remove_only_hides)) books_->gone.insert(name);
          books_->removed.insert_or_assign(name, found->second);
          books_->records.erase(found);
          return Answer::ok();
        });
  }

  void get(std::string key, Done done) override {
    run(std::move(done), key, [&](Hold&) -> Answer {
      const std::string name = stored_key(key);
      if (is(Bug::get_cached) && cache_.contains(name)) {
        Answer answer = Answer::ok();
        answer.record = share(cache_.at(name));
        return answer;
      }
      Answer answer = Answer::ok();
      const auto found = books_->records.find(name);
      if (found != books_->records.end()) {
        answer.record = share(found->second.record);
        answer.place = found->second.place;
        if (is(Bug::get_cached)) cache_.emplace(name, *answer.record);
        if (is(Bug::get_hides_expired) && answer.record->expires_at <= Time{Millis{1}}) answer.record.reset();
      } else if (is(Bug::get_refuses_nothing)) {
        return Answer::refuse(nullptr);
      }
      return answer;
    });
  }

  void list(ListQuery query, Callback<void(ListPage)> done) override {
    ListPage page;
    {
      const std::lock_guard lock(books_->mutex);
      if (books_->down || (is(Bug::outage_for_good) && books_->was_down)) {
        page.error = {ErrorKind::unavailable, "down"};
      } else if ((query.limit < 1 || query.limit > 10'000) && !is(Bug::list_limit_unchecked)) {
        page.error = {ErrorKind::misuse, "limit"};
      } else {
        page = page_of(query);
      }
    }
    done(std::move(page));
  }

  void sweep(Time now, std::size_t limit, Callback<void(SweepAnswer)> done) override {
    SweepAnswer answer;
    std::unique_lock lock(books_->mutex);
    if (books_->down || (is(Bug::outage_for_good) && books_->was_down)) {
      lock.unlock();
      answer.error = {ErrorKind::unavailable, "down"};
      return done(std::move(answer));
    }
    std::vector<std::string> keys;
    for (const auto& [key, kept] : books_->records) {
      if (is_foreign(kept)) continue;
      if (is_swept(kept, now)) keys.push_back(key);
    }
    answer.more = keys.size() > limit;
    if (answer.more && !is(Bug::sweep_ignores_limit)) keys.resize(limit);
    if (is(Bug::sweep_not_atomic)) {
      // Until somebody has claimed one of them anew: there is nobody where nothing races.
      books_->written.wait_for(lock, std::chrono::milliseconds(5), [&] {
        return std::any_of(keys.begin(), keys.end(), [&](const std::string& key) {
          const auto found = books_->records.find(key);
          return found != books_->records.end() && !is_swept(found->second, now);
        });
      });
    }
    for (const std::string& key : keys) answer.removed += books_->records.erase(key);
    if (is(Bug::sweep_says_no_more)) answer.more = false;
    if (is(Bug::sweep_always_more)) answer.more = true;
    if (is(Bug::sweep_counts_wrong)) answer.removed = std::min(limit, books_->records.size() + answer.removed);
    lock.unlock();
    done(std::move(answer));
  }

  [[nodiscard]] std::optional<once::StoreTime> time() const noexcept override {
    if (!tells_time() && bug_ != Bug::says_time_wrongly) return std::nullopt;
    const std::lock_guard lock(time_mutex_);
    time_ += Millis{bug_ == Bug::time_goes_back ? -1000 : 1};
    return once::StoreTime{time_, Millis{5}};
  }

  [[nodiscard]] once::Capabilities capabilities() const noexcept override {
    return {.max_record_bytes = bug_ == Bug::says_too_small ? 1000 : max_bytes,
            .durable = bug_ != Bug::says_durable_wrongly,
            .shared = bug_ != Bug::says_shared_wrongly,
            .tells_time = tells_time(),
            .default_skew = Millis{0},
            .keeps_compressed = bug_ != Bug::says_compressed_wrongly};
  }

  [[nodiscard]] std::string name() const override { return "small:"; }

 private:
  // The lock of one operation, and the gap in it that a bug may make.
  class Hold {
   public:
    explicit Hold(std::unique_lock<std::mutex>& lock) : lock_(lock) {}
    void let_go() {
      lock_.unlock();
      for (int i = 0; i < 3; ++i) std::this_thread::yield();
      lock_.lock();
    }

   private:
    std::unique_lock<std::mutex>& lock_;
  };

  [[nodiscard]] bool is(Bug bug) const noexcept { return bug_ == bug; }
  [[nodiscard]] bool tells_time() const noexcept { return bug_ != Bug::says_time_wrongly; }

  template <class F>
  void run(Done done, const std::string& key, F operation) {
    static thread_local const SmallStore* inside = nullptr;
    if (is(Bug::done_under_lock) && inside == this) return;  // Would wait for itself for ever.
    std::unique_lock lock(books_->mutex);
    Answer answer;
    const bool down = books_->down || (is(Bug::outage_for_good) && books_->was_down);
    const auto found = books_->records.find(key);
    const bool foreign = found != books_->records.end() && is_foreign(found->second);
    const bool spoilt = is(Bug::foreign_spoils_all) && std::any_of(books_->records.begin(), books_->records.end(),
                                                                   [](const auto& r) { return is_foreign(r.second); });
    Hold hold(lock);
    if (down && is(Bug::outage_is_misuse)) {
      answer = Answer::fail(ErrorKind::misuse, "down");
    } else if (down && is(Bug::outage_is_nothing)) {
      answer = Answer::ok();
    } else if (down && is(Bug::outage_forgets) && !books_->last_written.empty()) {
      answer = Answer::ok();
    } else if (down) {
      if (is(Bug::outage_writes)) operation(hold);
      answer = Answer::fail(ErrorKind::unavailable, "down");
    } else if (foreign && is(Bug::foreign_is_nothing)) {
      answer = Answer::refuse(nullptr);
    } else if (foreign && is(Bug::foreign_is_unavailable)) {
      answer = Answer::fail(ErrorKind::unavailable, "foreign");
    } else if (foreign && is(Bug::foreign_overwritten)) {
      books_->records.erase(found);
      answer = operation(hold);
    } else if (foreign && is(Bug::foreign_removed)) {
      books_->records.erase(found);
      answer = Answer::fail(ErrorKind::corrupt, "foreign");
    } else if (foreign || spoilt) {
      answer = Answer::fail(ErrorKind::corrupt, "foreign");
    } else {
      answer = operation(hold);
    }
    if (is(Bug::done_under_lock)) {
      inside = this;
      done(std::move(answer));
      inside = nullptr;
      return;
    }
    lock.unlock();
    done(std::move(answer));
  }

  // The companion's part of a replace. Gives the answer if the record is not to be written.
  std::optional<Answer> commit(const Plus& plus, bool may, bool again, Hold& hold) {
    if (is(Bug::with_alone)) return std::nullopt;
    if (is(Bug::with_first) && !plus.declined) {
      ++books_->companions;
      return std::nullopt;
    }
    if (is(Bug::with_apart) && may && !plus.declined) {
      ++books_->companions;
      hold.let_go();
      return std::nullopt;
    }
    if (again && is(Bug::with_again)) ++books_->companions;
    if (!may && !(plus.declined && is(Bug::with_declined_first))) return std::nullopt;
    if (!plus.declined) {
      ++books_->companions;
      return std::nullopt;
    }
    if (is(Bug::with_declined_record)) return std::nullopt;
    if (is(Bug::with_declined_companion)) ++books_->companions;
    Answer answer = Answer::decline(is(Bug::with_declined_misuse) ? ErrorKind::misuse : ErrorKind::unavailable, "no");
    answer.declined = !is(Bug::with_declined_plain);
    return answer;
  }

  static bool is_foreign(const Kept& kept) { return kept.record.note == foreign_mark; }

  std::optional<Answer> size_error(Record& record) {
    if (once::record_bytes(record) <= max_bytes || is(Bug::too_large_kept)) return std::nullopt;
    if (is(Bug::too_large_throws)) throw std::length_error("too large");
    if (is(Bug::too_large_unavailable)) return Answer::fail(ErrorKind::unavailable, "too large");
    if (is(Bug::too_large_then_written)) write(stored_key(record.key), record);
    if (is(Bug::too_large_not_unfit)) return Answer::fail(ErrorKind::misuse, "too large");
    return Answer::cannot_keep("too large");
  }

  [[nodiscard]] std::string stored_key(std::string key) const {
    switch (bug_) {
      case Bug::nul_ends_key:
        return to_nul(key);
      case Bug::key_case:
        return to_lower(std::move(key));
      case Bug::key_padding:
        while (!key.empty() && key.back() == ' ') key.pop_back();
        return key;
      case Bug::key_ascii:
        return to_ascii(std::move(key));
      case Bug::key_short:
        return key.substr(0, 255);
      case Bug::hash_collides:
        return std::to_string(key.size()) + (key.empty() ? ' ' : key.back());
      default:
        return key;
    }
  }

  std::string target(std::string key, const Seen& seen) {
    if (!is(Bug::place_alone) || seen.place == 0) return key;
    for (const auto& [name, kept] : books_->records) {
      if (kept.place == seen.place) return name;
    }
    return key;
  }

  [[nodiscard]] bool allows(const Kept& kept, const Seen& seen, const Record& next) const {
    const Record& there = kept.record;
    const bool owner = there.owner == seen.owner;
    const bool revision = there.revision == seen.revision;
    switch (bug_) {
      case Bug::replace_ignores_owner:
        return revision;
      case Bug::replace_ignores_revision:
        return owner;
      case Bug::replace_either:
        return owner || revision;
      case Bug::replace_older_revision:
        return owner && seen.revision <= there.revision;
      case Bug::replace_owner_half:
        return revision &&
               std::equal(there.owner.bytes.begin(), there.owner.bytes.begin() + 8, seen.owner.bytes.begin());
      case Bug::replace_revision_32_bits:
        return owner && static_cast<std::uint32_t>(there.revision) == static_cast<std::uint32_t>(seen.revision);
      case Bug::replace_nobody_is_anybody:
        return revision && (owner || seen.owner == once::Owner{});
      case Bug::replace_respects_lease:
        return owner && revision && (next.owner == there.owner || there.lease_until <= next.created_at);
      case Bug::replace_respects_token:
        return owner && revision && next.token >= there.token;
      case Bug::replace_respects_fingerprint:
        return owner && revision && (there.fingerprint.empty() || next.fingerprint == there.fingerprint);
      case Bug::place_required:
        return owner && revision && (seen.place == 0 || seen.place == kept.place);
      case Bug::place_shortcut:
        return owner && (revision || seen.place == kept.place);
      default:
        return owner && revision;
    }
  }

  Answer refusal(const std::string& key) {
    const auto found = books_->records.find(key);
    if (found == books_->records.end()) return Answer::refuse(nullptr);
    const Kept& shown = is(Bug::refusal_of_first) ? books_->records.begin()->second : found->second;
    return Answer::refuse(share(shown.record), shown.place);
  }

  std::uint64_t write(const std::string& key, Record record) {
    spoil(record);
    if (is(Bug::nul_ends_key) || is(Bug::key_ascii) || is(Bug::key_short)) record.key = key;
    const auto found = books_->records.find(key);
    books_->last_written = key;
    books_->written.notify_all();
    books_->removed.erase(key);
    if (found != books_->records.end()) {
      found->second.before = std::exchange(found->second.record, std::move(record));
      return found->second.place;
    }
    const Time expiry = record.expires_at;
    const std::uint64_t place = ++books_->places;
    books_->records.emplace(key, Kept{std::move(record), place, expiry, std::nullopt});
    return place;
  }

  void spoil(Record& record) const {
    const auto seconds = [](Time time) {
      return time == once::never ? time : std::chrono::floor<std::chrono::seconds>(time);
    };
    switch (bug_) {
      case Bug::drops_state:
        if (record.state == State::unknown) record.state = State::failed;
        break;
      case Bug::drops_owner:
        record.owner.bytes.back() = 0;
        break;
      case Bug::drops_token:
        record.token = 0;
        break;
      case Bug::drops_attempt:
        record.attempt = 1;
        break;
      case Bug::drops_lease_until:
        record.lease_until = Time{};
        break;
      case Bug::drops_created_at:
        record.created_at = Time{};
        break;
      case Bug::drops_finished_at:
        record.finished_at = Time{};
        break;
      case Bug::drops_fingerprint:
        record.fingerprint = {};
        break;
      case Bug::drops_holder:
        record.holder.clear();
        break;
      case Bug::drops_note:
        record.note.clear();
        break;
      case Bug::drops_steps:
        record.steps.clear();
        break;
      case Bug::drops_step_results:
        for (once::Step& step : record.steps) step.result.clear();
        break;
      case Bug::drops_step_order:
        std::sort(record.steps.begin(), record.steps.end(),
                  [](const auto& a, const auto& b) { return a.name < b.name; });
        break;
      case Bug::drops_empty_steps:
        std::erase_if(record.steps, [](const once::Step& step) { return step.result.empty(); });
        break;
      case Bug::drops_result:
        record.result.bytes.clear();
        break;
      case Bug::drops_failed_result:
        if (record.state != State::completed) record.result.bytes.clear();
        break;
      case Bug::drops_content_type:
        record.result.content_type.clear();
        break;
      case Bug::drops_compressed:
        if (record.result.placement != once::Placement::compressed) break;
        [[fallthrough]];
      case Bug::drops_placement:
        record.result.placement = once::Placement::inlined;
        break;
      case Bug::drops_location:
        record.result.location.clear();
        break;
      case Bug::drops_size:
        record.result.size &= 0xFFFFFFFFU;
        break;
      case Bug::drops_digest:
        record.result.digest = {};
        break;
      case Bug::drops_failure_code:
        record.failure.code.clear();
        break;
      case Bug::drops_failure_message:
        record.failure.message.clear();
        break;
      case Bug::nul_ends_result:
        record.result.bytes = to_nul(record.result.bytes);
        break;
      case Bug::nul_ends_step:
        for (once::Step& step : record.steps) step.result = to_nul(step.result);
        break;
      case Bug::nul_ends_text:
        record.holder = to_nul(record.holder);
        record.note = to_nul(record.note);
        break;
      case Bug::result_text:
        record.result.bytes = to_ascii(record.result.bytes);
        break;
      case Bug::result_short:
        record.result.bytes.resize(std::min<std::size_t>(record.result.bytes.size(), 65'536));
        break;
      case Bug::number_as_double:
        record.token = static_cast<std::uint64_t>(static_cast<double>(record.token));
        break;
      case Bug::attempt_16_bits:
        record.attempt &= 0xFFFFU;
        break;
      case Bug::time_in_seconds:
        record.lease_until = seconds(record.lease_until);
        record.created_at = seconds(record.created_at);
        break;
      case Bug::never_is_year_9999:
        if (record.expires_at == once::never) record.expires_at = Time{Millis{253'402'300'799'999}};
        break;
      case Bug::fingerprint_32_bytes:
        record.fingerprint = once::Fingerprint(record.fingerprint.bytes().substr(0, 32));
        break;
      default:
        break;
    }
  }

  [[nodiscard]] bool has_prefix(const std::string& key, const std::string& prefix) const {
    switch (bug_) {
      case Bug::list_ignores_prefix:
        return true;
      case Bug::list_prefix_pattern:
        return is_like(key, prefix + "%");
      case Bug::list_prefix_case:
        return to_lower(key).starts_with(to_lower(prefix));
      case Bug::list_prefix_range: {
        std::string end = prefix;
        if (end.empty()) return true;
        ++end.back();
        return key >= prefix && key < end;
      }
      case Bug::list_prefix_nul:
        return key.starts_with(to_nul(prefix));
      default:
        return key.starts_with(prefix);
    }
  }

  [[nodiscard]] bool is_listed(const Kept& kept, const ListQuery& query) const {
    const Record& record = kept.record;
    if (!has_prefix(record.key, query.key_prefix)) return false;
    if (query.state && record.state != *query.state && !is(Bug::list_ignores_state)) return false;
    if (!query.expired_at || is(Bug::list_ignores_expiry)) return true;
    if (is(Bug::list_expired_exclusive)) return record.expires_at < *query.expired_at;
    if (is(Bug::list_never_expires)) return record.expires_at <= *query.expired_at;
    return once::is_expired(record.expires_at, *query.expired_at);
  }

  ListPage page_of(const ListQuery& query) {
    ListPage page;
    std::size_t offset = 0;
    const bool by_offset =
        is(Bug::list_offset_cursor) || is(Bug::list_skips_at_page_end) || is(Bug::list_repeats_at_page_end);
    std::string after = query.cursor.empty() ? "" : query.cursor.substr(1);
    if (by_offset && !query.cursor.empty()) {
      if (after.empty() || after.size() > 9 || after.find_first_not_of("0123456789") != std::string::npos) {
        page.error = {ErrorKind::misuse, "cursor"};
        return page;
      }
      offset = std::stoul(after);
    }
    if (is(Bug::list_one_use_cursor) && !query.cursor.empty() && !used_.insert(query.cursor).second) return page;
    std::size_t looked = 0;
    std::size_t index = 0;
    std::string last;
    const std::size_t limit = query.limit + (is(Bug::list_page_too_long) ? 1 : 0);
    for (const auto& [key, kept] : books_->records) {
      if (!by_offset && !query.cursor.empty() && key <= after) continue;
      if (is(Bug::list_filters_after_limit) && looked++ == limit) {
        if (!page.records.empty()) page.cursor = "k" + last;
        return page;
      }
      if (!is_listed(kept, query)) {
        last = key;
        continue;
      }
      if (is_foreign(kept)) {
        if (is(Bug::list_hides_foreign)) continue;
        page.error = {ErrorKind::corrupt, "foreign"};
        return page;
      }
      if (by_offset && index++ < offset) continue;
      if (page.records.size() == limit) {
        std::size_t next = offset + page.records.size();
        if (is(Bug::list_skips_at_page_end)) ++next;
        if (is(Bug::list_repeats_at_page_end) && limit > 1) --next;
        page.cursor = "k" + (by_offset ? std::to_string(next) : last);
        return page;
      }
      page.records.push_back(kept.record);
      if (is(Bug::list_without_results)) page.records.back().result = {};
      last = key;
    }
    if (is(Bug::list_endless)) page.cursor = "k" + std::string(1, '\xFF');
    return page;
  }

  [[nodiscard]] bool is_swept(const Kept& kept, Time now) const {
    const Record& record = kept.record;
    switch (bug_) {
      case Bug::sweep_too_early:
        return once::is_expired(record.expires_at, now) ||
               (now < once::never - Millis{1} && once::is_expired(record.expires_at, now + Millis{1}));
      case Bug::sweep_exclusive:
        return record.expires_at < now;
      case Bug::sweep_never:
        return record.expires_at <= now;
      case Bug::sweep_unfinished_forever:
        return once::is_expired(record.expires_at, now) && record.state != State::in_progress;
      case Bug::sweep_lapsed:
        return once::is_expired(record.expires_at, now) ||
               (record.state == State::in_progress && once::is_expired(record.lease_until, now));
      case Bug::sweep_first_expiry:
        return once::is_expired(kept.first_expiry, now);
      default:
        return once::is_expired(record.expires_at, now);
    }
  }

  std::shared_ptr<Books> books_;
  const Bug bug_;
  std::map<std::string, Record> cache_;
  std::set<std::string> used_;
  mutable std::mutex time_mutex_;
  mutable Time time_ = once::testing::manual_start;
};

class SmallHarness final : public once::testing::StoreHarness {
 public:
  explicit SmallHarness(Bug bug) : bug_(bug) {}

  std::unique_ptr<once::Store> open() override { return std::make_unique<SmallStore>(books_, bug_); }

  void plant(std::size_t, const std::string& key) override {
    const std::lock_guard lock(books_->mutex);
    Record record = once::testing::plain_record(key);
    record.note = foreign_mark;
    books_->records.emplace(key, Kept{record, ++books_->places, record.expires_at, std::nullopt});
  }

  std::shared_ptr<const once::Companion> companion(bool declined) override { return std::make_shared<Plus>(declined); }

  std::size_t companions_written() override {
    const std::lock_guard lock(books_->mutex);
    return books_->companions;
  }

  std::shared_ptr<void> begin_outage(const std::string&) override {
    set_down(true);
    return {books_.get(), [this](void*) { set_down(false); }};
  }

 private:
  void set_down(bool down) {
    const std::lock_guard lock(books_->mutex);
    books_->down = down;
    books_->was_down = true;
  }

  const std::shared_ptr<Books> books_ = std::make_shared<Books>();
  const Bug bug_;
};

// Which tests of which suite failed.
class Collector final : public ::testing::EmptyTestEventListener {
 public:
  void OnTestEnd(const ::testing::TestInfo& info) override {
    ++ran_;
    if (!info.result()->Failed()) return;
    const std::string suite = info.test_suite_name();  // Bug and layer: insert_twice_by_owner_laws.
    for (const std::string layer : {"round_trip", "laws", "model", "race", "faults"}) {
      if (!suite.ends_with("_" + layer)) continue;
      caught_.try_emplace(suite.substr(0, suite.size() - layer.size() - 1), layer + "." + info.name());
    }
  }
  // "layer.test" of the first that failed for a bug; empty if none did.
  [[nodiscard]] std::string caught(const std::string& bug) const {
    const auto found = caught_.find(bug);
    return found == caught_.end() ? "" : found->second;
  }
  [[nodiscard]] std::size_t ran() const { return ran_; }

 private:
  std::map<std::string, std::string> caught_;
  std::size_t ran_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const std::string only = argc > 1 ? argv[1] : "";
  const auto collector = std::make_unique<Collector>();
  std::size_t registered = 0;
  for (const Planted& planted : all_bugs) {
    if (!only.empty() && only != planted.name) continue;
    // Whoever hangs is found out early; the right store is given all the time it may need.
    const Millis patience{planted.bug == Bug::none ? 60'000 : 300};
    registered += once::testing::register_conformance(
        planted.name,
        {.shared = true,
         .durable = true,
         .foreign_records = 1,
         .outages = {"gone"},
         .companions = true,
         .patience = patience},
        [&planted, &only, caught = collector.get()] {
          if (only.empty() && planted.bug != Bug::none && !caught->caught(planted.name).empty()) {
            throw std::runtime_error("caught before");
          }
          return std::make_unique<SmallHarness>(planted.bug);
        },
        __FILE__, __LINE__);
  }
  if (registered == 0) {
    std::cout << "no planted bug is called '" << only << "'\n";
    return 2;
  }
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  listeners.Append(collector.get());
  if (only.empty()) delete listeners.Release(listeners.default_result_printer());
  const int result = RUN_ALL_TESTS();
  listeners.Release(collector.get());
  if (!only.empty()) return result;

  std::size_t escaped = 0;
  std::size_t bugs = 0;
  std::cout << std::left;
  for (const Planted& planted : all_bugs) {
    const std::string caught = collector->caught(planted.name);
    if (planted.bug == Bug::none) {
      if (!caught.empty()) std::cout << "the right store was blamed by " << caught << "\n";
      escaped += caught.empty() ? 0 : 1;
      continue;
    }
    ++bugs;
    escaped += caught.empty() ? 1 : 0;
    std::cout << std::setw(30) << planted.name << std::setw(62) << planted.text
              << (caught.empty() ? "NOT CAUGHT" : caught) << "\n";
  }
  std::cout << "\n"
            << bugs << " planted bugs, " << escaped << " wrong verdicts, " << collector->ran() << " tests run\n";
  // A verdict on nothing would be worth nothing.
  return escaped == 0 && collector->ran() == registered ? 0 : 1;
}
