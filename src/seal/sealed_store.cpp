// A store that seals each record before the store below sees it, and opens what that gives back.
#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include <once/error.hpp>
#include <once/seal.hpp>

#include "seal/sealing.hpp"
#include "text/ascii.hpp"
#include "text/netstring.hpp"
#include "text/number.hpp"

namespace once {

namespace {

// The key's id, the seed, the tag, and the netstrings of the fields: about 400 bytes for a record without steps.
constexpr std::size_t overhead = 1024;
constexpr std::size_t label_digits = 32;

void add(std::string& out, std::string_view bytes) { text::append_netstring(out, bytes); }
void add(std::string& out, std::uint64_t number) { add(out, std::to_string(number)); }

void add(std::string& out, Time time) { add(out, std::to_string(unix_ms(time))); }

// What stays in the clear, as it is stored, but the key. Each write seals the whole record again, so all of it can be
// bound: nobody can move a sealed text to another state of its record, and nobody can change the rest.
std::string bound_of(const Record& stored) {
  std::string out;
  add(out, static_cast<std::uint64_t>(stored.state));
  add(out, {reinterpret_cast<const char*>(stored.owner.bytes.data()), stored.owner.bytes.size()});
  add(out, stored.token);
  add(out, stored.attempt);
  add(out, stored.revision);
  for (const Time time :
       {stored.lease_until, stored.expires_at, stored.created_at, stored.finished_at, stored.expected_until}) {
    add(out, time);
  }
  add(out, static_cast<std::uint64_t>(stored.on_lapse));
  add(out, stored.holder);
  add(out, stored.label);
  add(out, history_text(stored.history));
  add(out, stored.input_bytes);
  add(out, stored.result.size);
  add(out, stored.failure.code);
  return out;
}

seals::Context context_of(const Record& record, const std::string& bound) {
  return {.kind = "record", .name = record.key, .bound = bound};
}

// What a reader of the store must not see. A field more is another version.
std::string secrets_of(const Record& record) {
  std::string out;
  add(out, 1U);  // The version.
  add(out, record.fingerprint.bytes());
  add(out, record.label);
  add(out, record.note);
  add(out, record.input);
  add(out, record.failure.message);
  const Result& result = record.result;
  add(out, static_cast<std::uint64_t>(result.placement));
  add(out, result.bytes);
  add(out, result.content_type);
  add(out, result.location);
  add(out, result.size);
  add(out, {reinterpret_cast<const char*>(result.digest.data()), result.digest.size()});
  add(out, record.history.entries.size());
  for (const HistoryEntry& entry : record.history.entries) add(out, entry.why);
  for (const Step& step : record.steps) {
    add(out, step.name);
    add(out, step.result);
  }
  return out;
}

// Takes fields off the front of a text; `good` is false after the first that is not there.
class Fields {
 public:
  explicit Fields(std::string_view text) : text_(text) {}

  std::string_view bytes() {
    const auto field = good_ ? text::take_netstring(text_) : std::nullopt;
    good_ = field.has_value();
    return field.value_or(std::string_view());
  }
  std::uint64_t number(std::uint64_t most) {
    const auto number = text::parse_whole<std::uint64_t>(bytes());
    good_ = good_ && number && *number <= most;
    return good_ ? *number : 0;
  }
  void expect(bool holds) { good_ = good_ && holds; }
  [[nodiscard]] bool good() const noexcept { return good_; }
  [[nodiscard]] bool more() const noexcept { return good_ && !text_.empty(); }

 private:
  std::string_view text_;
  bool good_ = true;
};

// False: malformed.
bool put_secrets(Record& record, std::string_view text) {
  Fields fields(text);
  fields.expect(fields.number(1) == 1);
  const std::string_view fingerprint = fields.bytes();
  fields.expect(fingerprint.size() <= Fingerprint::max_bytes);
  if (fields.good()) record.fingerprint = Fingerprint(fingerprint);
  record.label = fields.bytes();
  record.note = fields.bytes();
  record.input = fields.bytes();
  record.failure.message = fields.bytes();
  Result& result = record.result;
  result.placement = static_cast<Placement>(fields.number(static_cast<std::uint64_t>(Placement::compressed)));
  result.bytes = fields.bytes();
  result.content_type = fields.bytes();
  result.location = fields.bytes();
  result.size = fields.number(std::numeric_limits<std::uint64_t>::max());
  const std::string_view digest = fields.bytes();
  fields.expect(digest.size() == result.digest.size());
  if (fields.good()) std::copy(digest.begin(), digest.end(), result.digest.begin());
  fields.expect(fields.number(record.history.entries.size()) == record.history.entries.size());
  for (HistoryEntry& entry : record.history.entries) entry.why = fields.bytes();
  while (fields.more()) {
    Step step;
    step.name = fields.bytes();
    step.result = fields.bytes();
    record.steps.push_back(std::move(step));
  }
  return fields.good();
}

// The fields that stay in the clear, and that bound_of() binds. In a sealed record every other field is empty.
Record clear_part_of(const Record& record) {
  Record out;
  out.key = record.key;
  out.state = record.state;
  out.owner = record.owner;
  out.token = record.token;
  out.attempt = record.attempt;
  out.revision = record.revision;
  out.lease_until = record.lease_until;
  out.expires_at = record.expires_at;
  out.created_at = record.created_at;
  out.finished_at = record.finished_at;
  out.expected_until = record.expected_until;
  out.on_lapse = record.on_lapse;
  out.holder = record.holder;
  out.label = record.label;
  out.history = record.history;
  for (HistoryEntry& entry : out.history.entries) entry.why.clear();
  out.input_bytes = record.input_bytes;
  out.result.placement = Placement::sealed;
  out.result.size = record.result.size;
  out.failure.code = record.failure.code;
  return out;
}

RecordPtr sealed(const SealKeys& keys, const Record& record) {
  Record out = clear_part_of(record);
  const SealKey& key = keys.front();
  if (!record.label.empty())
    out.label = to_hex(seals::keyed_hash(key, {"once seal label", record.label})).substr(0, label_digits);
  if (record.result.placement == Placement::inlined) out.result.size = record.result.bytes.size();
  out.result.bytes = seals::seal(key, context_of(out, bound_of(out)), {}, secrets_of(record));
  return share(std::move(out));
}

// What a store with keys believes.
struct Opening {
  SealKeys keys;
  SealReads reads = SealReads::both;
};

Error corrupt(const Record& record, const std::string& what) {
  return {ErrorKind::corrupt, "the record '" + text::printable(record.key) + "' " + what};
}

// A sealed text that is not marked as one would be replayed as it is.
bool has_lost_its_mark(const SealKeys& keys, const Record& record) {
  std::string_view rest = record.result.bytes;
  const auto id = seals::take_key_id(rest);
  return id && seals::find(keys, *id) != nullptr && seals::looks_sealed(record.result.bytes);
}

// Opens the record in place. A record that is not sealed, or whose key is not known, stays as it is.
std::optional<Error> open(const Opening& opening, Record& record) try {
  if (record.result.placement != Placement::sealed) {
    if (has_lost_its_mark(opening.keys, record)) {
      return corrupt(record, "has a sealed text and is not marked as sealed: it was changed by other means than once");
    }
    if (opening.reads == SealReads::both) return std::nullopt;
    return corrupt(
        record,
        "is in the clear, and this store believes only sealed ones (read_clear=0): it was put there by other "
        "means than once, or by a program without the keys");
  }
  const std::string sealed = std::exchange(record.result.bytes, {});
  if (record != clear_part_of(record)) {
    return corrupt(record,
                   "has fields beside its sealed text that the seal does not cover, so nothing of it is believed: it "
                   "was changed by other means than once");
  }
  std::string_view rest = sealed;
  const auto id = seals::take_key_id(rest);
  const SealKey* const key = id ? seals::find(opening.keys, *id) : nullptr;
  if (id && key == nullptr) {
    record.result.bytes = sealed;
    return std::nullopt;
  }
  const auto secrets = key == nullptr ? std::nullopt : seals::open(*key, context_of(record, bound_of(record)), rest);
  if (secrets && put_secrets(record, *secrets)) return std::nullopt;
  return corrupt(record, "does not open with the seal key '" + (id ? text::printable(*id) : std::string()) +
                             "': the key has other bytes than when it was sealed, or the record was changed");
} catch (const Exception& error) {
  return Error{error.kind(), error.what()};
}

// Completions may outlive the store.
class Tally {
 public:
  void add(const SealCounts& more) {
    const std::lock_guard lock(mutex_);
    counts_.clear += more.clear;
    for (const auto& [id, count] : more.sealed) counts_.sealed[id] += count;
  }
  [[nodiscard]] SealCounts counts() const {
    const std::lock_guard lock(mutex_);
    return counts_;
  }

 private:
  mutable std::mutex mutex_;
  SealCounts counts_;
};

void count(const Record& stored, SealCounts& counts) {
  if (stored.result.placement != Placement::sealed) {
    ++counts.clear;
    return;
  }
  std::string_view sealed = stored.result.bytes;
  ++counts.sealed[std::string(seals::take_key_id(sealed).value_or("?"))];
}

class SealedStore final : public Store {
 public:
  SealedStore(std::unique_ptr<Store> store, SealKeys keys, SealWrites writes, SealReads reads)
      : opening_(std::make_shared<const Opening>(Opening{.keys = std::move(keys), .reads = reads})),
        writes_(writes),
        store_(std::move(store)) {}

  void insert(RecordPtr record, Done done) override {
    write(std::move(record), std::move(done),
          [&](RecordPtr sealed, Done opened) { store_->insert(std::move(sealed), std::move(opened)); });
  }
  void replace(RecordPtr record, Seen seen, Done done) override {
    write(std::move(record), std::move(done),
          [&](RecordPtr sealed, Done opened) { store_->replace(std::move(sealed), seen, std::move(opened)); });
  }
  void replace_with(RecordPtr record, Seen seen, std::shared_ptr<const Companion> companion, Done done) override {
    write(std::move(record), std::move(done), [&](RecordPtr sealed, Done opened) {
      store_->replace_with(std::move(sealed), seen, std::move(companion), std::move(opened));
    });
  }
  void remove(std::string key, Seen seen, Done done) override {
    store_->remove(std::move(key), seen, opened(std::move(done)));
  }
  void get(std::string key, Done done) override { store_->get(std::move(key), opened(std::move(done))); }

  void list(ListQuery query, Callback<void(ListPage)> done) override {
    store_->list(std::move(query), [opening = opening_, tally = tally_, done = std::move(done)](ListPage page) mutable {
      std::vector<Record> records;
      records.reserve(page.records.size());
      SealCounts counts;
      for (Record& record : page.records) {
        count(record, counts);
        if (auto error = open(*opening, record)) {
          page.unreadable.push_back(std::move(*error));
        } else {
          records.push_back(std::move(record));
        }
      }
      tally->add(counts);
      page.records = std::move(records);
      done(std::move(page));
    });
  }
  void sweep(Time now, std::size_t limit, Callback<void(SweepAnswer)> done) override {
    store_->sweep(now, limit, std::move(done));
  }

  [[nodiscard]] std::optional<StoreTime> time() const noexcept override { return store_->time(); }
  [[nodiscard]] std::optional<StoreTime> time_at(const Clock& clock, Uptime uptime) const noexcept override {
    return store_->time_at(clock, uptime);
  }
  [[nodiscard]] Capabilities capabilities() const noexcept override {
    Capabilities out = store_->capabilities();
    // A handed-out finish does not know the revision and the lease that its text would have to be bound to.
    out.hands_out = false;
    out.has_finish_function = false;
    if (writes_ == SealWrites::clear) return out;
    out.max_record_bytes -= std::min(out.max_record_bytes, overhead);
    out.seals = true;
    return out;
  }
  [[nodiscard]] std::string name() const override { return store_->name(); }
  [[nodiscard]] Store* below() const noexcept override { return store_.get(); }
  [[nodiscard]] SealCounts counts() const { return tally_->counts(); }

 private:
  [[nodiscard]] Done opened(Done done) const {
    return [opening = opening_, done = std::move(done)](Answer answer) mutable {
      if (answer.record != nullptr) {
        Record record = *answer.record;
        if (auto error = open(*opening, record)) {
          const auto time = answer.time;
          answer = Answer::fail(error->kind, std::move(error->message));
          answer.time = time;
        } else {
          answer.record = share(std::move(record));
        }
      }
      done(std::move(answer));
    };
  }

  template <class Write>
  void write(RecordPtr whole, Done done, Write&& write_sealed) {
    const Record& record = *whole;
    const std::size_t most = capabilities().max_record_bytes;
    if (record_bytes(record) > most) {
      return done(Answer::cannot_keep("the record has " + std::to_string(record_bytes(record)) +
                                      " bytes; sealed, the store keeps " + std::to_string(most)));
    }
    RecordPtr out;
    try {
      if (record.result.placement == Placement::sealed) {
        return done(Answer::fail(ErrorKind::misuse, "the record is sealed with a key that is not known here"));
      }
      out = writes_ == SealWrites::clear ? std::move(whole) : sealed(opening_->keys, record);
    } catch (const Exception& error) {
      return done(Answer::fail(error.kind(), error.what()));
    }
    write_sealed(std::move(out), opened(std::move(done)));
  }

  // Completions keep the keys: one of them may destroy this store.
  const std::shared_ptr<const Opening> opening_;
  const std::shared_ptr<Tally> tally_ = std::make_shared<Tally>();
  const SealWrites writes_;
  const std::unique_ptr<Store> store_;
};

}  // namespace

std::unique_ptr<Store> seal(std::unique_ptr<Store> store, SealKeys keys, SealWrites writes, SealReads reads) {
  seals::check(keys);
  if (writes == SealWrites::clear && reads == SealReads::sealed) {
    throw Exception(ErrorKind::misuse, store->name() + " would write in the clear what it does not believe afterwards");
  }
  if (!store->capabilities().keeps_compressed) {
    throw Exception(ErrorKind::misuse,
                    store->name() + " cannot be sealed: other programs read its records, and could not open them");
  }
  return std::make_unique<SealedStore>(std::move(store), std::move(keys), writes, reads);
}

std::optional<SealCounts> seal_counts(const Store& store) {
  for (const Store* at = &store; at != nullptr; at = at->below()) {
    if (const auto* sealed = dynamic_cast<const SealedStore*>(at)) return sealed->counts();
  }
  return std::nullopt;
}

}  // namespace once
