#include "import/importer.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <utility>

#include <once/decide.hpp>
#include <once/error.hpp>
#include <once/operate.hpp>
#include <once/platform/blocking.hpp>

#include "output/report.hpp"
#include "output/text.hpp"
#include "platform/wait.hpp"
#include "text/rfc3339.hpp"

namespace once::cli::importing {

namespace {

constexpr std::size_t at_once = 64;  // Records that are written at the same time.
constexpr int max_tries = 5;         // Of one record that others change meanwhile, or whose response is lost.

using Answers = std::vector<Answer>;

// Starts one operation for each, and waits for all.
template <class Start>
Answers for_all(std::size_t count, Start start) {
  struct State {
    std::mutex mutex;
    Answers answers;
    std::size_t left = 0;
    Callback<void(Answers)> done;
  };
  if (count == 0) return {};
  return wait_for<Answers>([&](Callback<void(Answers)> done) {
    const auto state = std::make_shared<State>();
    state->answers.resize(count);
    state->left = count;
    state->done = std::move(done);
    for (std::size_t at = 0; at < count; ++at) {
      start(at, [state, at](Answer answer) {
        std::unique_lock lock(state->mutex);
        state->answers[at] = std::move(answer);
        if (--state->left > 0) return;
        lock.unlock();
        state->done(std::move(state->answers));
      });
    }
  });
}

std::uint64_t short_digest(std::string_view key) {
  const Sha256 digest = sha256(key);
  std::uint64_t out = 0;
  std::memcpy(&out, digest.data(), sizeof out);
  return out;
}

// Whether a record has what the row says. Times count only if they come from the row, which is not known here.
bool says_the_same(const Record& there, const Record& wanted) {
  return there.state == wanted.state && there.result == wanted.result && there.fingerprint == wanted.fingerprint &&
         (there.state == State::completed || there.failure == wanted.failure);
}

std::uint32_t random_bits(Random& random) {
  std::array<std::uint8_t, 4> bytes{};
  random.fill(bytes);
  return static_cast<std::uint32_t>(bytes[0]) << 24U | static_cast<std::uint32_t>(bytes[1]) << 16U |
         static_cast<std::uint32_t>(bytes[2]) << 8U | bytes[3];
}

std::string in_words(const Record& record, Time now) {
  std::string text(operate::to_string(operate::standing(record, now)));
  if (!record.holder.empty()) text += ", by " + escaped(record.holder);
  return text;
}

std::string sample_text(const Record& record) {
  std::string text(to_string(record.state));
  if (record.state == State::completed) {
    text += record.result.placement == Placement::dropped ? ", without a result"
                                                          : ", " + show_size(record.result.bytes.size());
    if (!record.result.content_type.empty()) text += " of " + escaped(record.result.content_type);
  }
  if (record.state == State::failed) text += ": " + escaped(record.failure.message);
  text += record.expires_at == never ? ", never expires" : ", expires " + text::rfc3339(record.expires_at);
  return text;
}

}  // namespace

// "from sqlite:old.db, source 6b86b273ff34fce1". The digest stands for the whole name of the source, in few bytes.
std::string origin_of(const std::string& from, const std::string& source) {
  constexpr std::size_t max_name_bytes = 200;
  constexpr std::size_t digest_bytes = 16;
  const std::string named = "from " + clean_text(from, max_name_bytes);
  if (source.empty()) return named;
  return named + ", source " + to_hex(sha256(source)).substr(0, digest_bytes);
}

void make_insertable(Record& record, const std::string& origin, Time now, Random& random, std::size_t max_bytes) {
  random.fill(record.owner.bytes);
  record.token = static_cast<std::uint64_t>(std::max<std::int64_t>(unix_ms(now), 1));
  record.revision = next_revision(0, random_bits(random));
  append(record.history, {.what = std::string(imported), .who = who(), .why = origin, .at = now});
  if (record.result.placement == Placement::inlined && record_bytes(record) > max_bytes) make_tombstone(record);
}

Importer::Importer(const Mapping& mapping, Store* to, ImportOptions options)
    : mapping_(mapping),
      to_(to),
      options_(std::move(options)),
      origin_(origin_of(options_.from, options_.source)),
      absent_(mapping.where_columns()) {}

// Another source may use the same key for another operation.
bool Importer::was_imported_from_here(const Record& record) const {
  return !options_.source.empty() && std::ranges::any_of(record.history.entries, [this](const HistoryEntry& entry) {
    return entry.what == imported && entry.why == origin_;
  });
}

// As an import of this source left it: unknown, and no attempt or operator has changed it since.
bool Importer::is_untouched(const Record& record) const {
  return record.state == State::unknown && record.failure.code == imported && was_imported_from_here(record) &&
         std::ranges::all_of(record.history.entries, [this](const HistoryEntry& entry) {
           return entry.what == imported && entry.why == origin_;
         });
}

void Importer::count(const Record& record) {
  if (record.state == State::completed) ++counts.completed;
  if (record.state == State::failed) ++counts.failed;
  if (record.state == State::unknown) ++counts.unknown;
  if (record.result.placement == Placement::dropped) ++counts.tombstones;
}

void Importer::problem(std::uint64_t& counter, const Row& row, const std::string& key, std::string why) {
  ++counter;
  if (problems_.size() < max_problems) problems_.push_back({row.name, key, std::move(why)});
}

void Importer::take(const std::vector<Row>& rows) {
  if (rows.empty()) return;
  // The store's time, because the store's expiry is judged by it.
  now_ = options_.clock->now();
  if (to_ != nullptr) {
    const StoreTime time = operate::learn_now(*to_, *options_.clock);
    now_ = time.now - time.error;
  }
  for (std::size_t at = 0; at < rows.size(); at += at_once) take_some(rows, at, std::min(rows.size(), at + at_once));
}

void Importer::take_some(const std::vector<Row>& rows, std::size_t begin, std::size_t end) {
  std::vector<Pending> pending;
  for (std::size_t at = begin; at < end; ++at) {
    Mapped mapped = mapping_.map(rows[at], now_, options_.from);
    std::erase_if(absent_, [&](const std::string& column) { return !mapped.absent.contains(column); });
    switch (mapped.kind) {
      case Mapped::Kind::record:
        if (!keys_.insert(short_digest(mapped.record.key)).second) {
          problem(
              counts.conflicts, rows[at], mapped.record.key,
              "a row before it has the same key: select more of the row by --key or --scope-from, or leave rows out "
              "by --where");
          break;
        }
        make_insertable(mapped.record, origin_, now_, *options_.random,
                        to_ == nullptr ? SIZE_MAX : to_->capabilities().max_record_bytes);
        if (samples_.size() < options_.samples) {
          samples_.push_back({rows[at].name, mapped.record.key, sample_text(mapped.record)});
        }
        pending.push_back({&rows[at], std::move(mapped.record)});
        continue;
      case Mapped::Kind::expired:
        ++counts.expired;
        break;
      case Mapped::Kind::left_out:
        ++counts.left_out;
        break;
      case Mapped::Kind::may_run:
        ++counts.may_run;
        break;
      case Mapped::Kind::refused:
        problem(counts.refused, rows[at], {}, std::move(mapped.why));
        break;
    }
    ++counts.rows;
  }
  Answers answers(pending.size());
  if (options_.dry_run && to_ != nullptr) {
    answers =
        for_all(pending.size(), [&](std::size_t at, Done done) { to_->get(pending[at].record.key, std::move(done)); });
    for (Answer& answer : answers) {
      if (answer.status == AnswerStatus::done && answer.record != nullptr) answer.status = AnswerStatus::refused;
    }
  } else if (to_ != nullptr) {
    answers = for_all(pending.size(),
                      [&](std::size_t at, Done done) { to_->insert(share(pending[at].record), std::move(done)); });
  }
  for (std::size_t at = 0; at < pending.size(); ++at) {
    settle(pending[at], std::move(answers[at]));
    ++counts.rows;
  }
}

// `answer`: of an insert, which is tried again for as long as its outcome is not known.
void Importer::settle(Pending& pending, Answer answer) {
  for (int tried = 1;; ++tried) {
    switch (answer.status) {
      case AnswerStatus::done:
        ++counts.inserted;
        return count(pending.record);
      case AnswerStatus::refused:
        if (answer.record != nullptr) return meet(pending, *answer.record, answer.place);
        break;  // It was removed meanwhile.
      case AnswerStatus::failed:
        if (options_.dry_run) throw Exception(answer.error);
        if (answer.unfit && pending.record.result.placement == Placement::inlined &&
            pending.record.state != State::unknown) {
          make_tombstone(pending.record);
          break;
        }
        if (answer.unfit) return problem(counts.refused, *pending.row, pending.record.key, answer.error.message);
        if (answer.error.kind != ErrorKind::in_doubt || tried == max_tries) throw Exception(answer.error);
        break;
    }
    if (tried == max_tries)
      throw Exception(ErrorKind::unavailable, "others change the records of the import all the time");
    answer = blocking::insert(*to_, pending.record);
  }
}

// The store has a record under the key.
void Importer::meet(Pending& pending, const Record& there, std::uint64_t place) {
  const Record& wanted = pending.record;
  if (there.owner == wanted.owner) {  // It is ours: the response to the first insert was lost.
    ++counts.inserted;
    return count(wanted);
  }
  const bool decides = is_untouched(there) && wanted.state != State::unknown;
  if (is_expired(there.expires_at, now_) || decides) return replace(pending, there, place, decides);
  const bool is_unknown_again = wanted.state == State::unknown && !options_.source.empty();
  if (is_unknown_again ? was_imported_from_here(there) : says_the_same(there, wanted)) {
    ++counts.already;
    return;
  }
  const bool is_of_another = there.state == State::unknown && there.failure.code == imported;
  problem(counts.conflicts, *pending.row, wanted.key,
          "the store has it " + in_words(there, now_) + (is_of_another ? ", imported from another source" : "") +
              ", and the row says " + std::string(to_string(wanted.state)));
}

void Importer::replace(Pending& pending, const Record& there, std::uint64_t place, bool decides) {
  Record& next = pending.record;
  next.token = std::max(next.token, there.token + 1);
  next.revision = next_revision(there.revision, random_bits(*options_.random));
  if (decides) {
    HistoryEntry entry = next.history.entries.back();
    next.history = there.history;
    append(next.history, std::move(entry));
  }
  std::uint64_t& counter = decides ? counts.decided : counts.inserted;
  if (options_.dry_run) {
    ++counter;
    return count(next);
  }
  const operate::Applied applied = operate::apply(*to_, there, place, next);
  switch (applied.kind) {
    case operate::Applied::Kind::done:
      ++counter;
      return count(next);
    case operate::Applied::Kind::changed:
      return problem(counts.conflicts, *pending.row, next.key, "the store's record changed meanwhile: import again");
    case operate::Applied::Kind::failed:
      break;
  }
  if (!applied.unfit) throw Exception(applied.error);
  problem(counts.refused, *pending.row, next.key, applied.error.message);
}

}  // namespace once::cli::importing
