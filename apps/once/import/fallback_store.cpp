#include "import/fallback_store.hpp"

#include <algorithm>
#include <utility>

#include <once/decide.hpp>
#include <once/operate.hpp>
#include <once/stores/sql.hpp>

#include "import/importer.hpp"
#include "import/mapping.hpp"
#include "text/prometheus.hpp"

namespace once::cli::importing {

namespace {

// How long a caller is asked to wait for an operation in progress there, whose end nobody knows. More than what may
// pass until the caller's engine compares it with its clock.
constexpr Millis ask_again_after{5'000};

// Its claim was decided on top of what this row says: a failure that is to be tried again.
bool knows(const Record& claim, const OldRow& row) {
  return row.record.state == State::failed &&
         std::ranges::any_of(claim.history.entries, [&](const HistoryEntry& entry) {
           return entry.what == imported && entry.why == row.origin;
         });
}

// Shared with the completions of the store and of the old table.
class Looking : public std::enable_shared_from_this<Looking> {
 public:
  explicit Looking(FallbackStoreOptions options)
      : store_(std::move(options.store)),
        old_(std::move(options.old)),
        counts_(std::move(options.counts)),
        clock_(std::move(options.clock)),
        random_(std::move(options.random)) {}

  [[nodiscard]] Store& store() const noexcept { return *store_; }

  void insert(RecordPtr claim, Done done) {
    store_->get(claim->key, [self = shared_from_this(), claim, done = std::move(done)](Answer seen) mutable {
      if (seen.status == AnswerStatus::failed) return done(std::move(seen));
      if (seen.record != nullptr) {
        seen.status = AnswerStatus::refused;
        return done(std::move(seen));
      }
      self->look(claim, [self, claim, done = std::move(done)](OldRow row) mutable {
        if (row.kind == OldRow::Kind::absent) return self->store_->insert(std::move(claim), std::move(done));
        if (!is_over(row)) return done(self->answer_without_write(std::move(row)));
        const RecordPtr copy = share(self->copy_of(std::move(row), *claim));
        self->store_->insert(copy, shown(copy, std::move(done)));
      });
    });
  }

  void take_over(RecordPtr claim, Seen seen, Done done) {
    look(claim, [self = shared_from_this(), claim, seen, done = std::move(done)](OldRow row) mutable {
      if (row.kind == OldRow::Kind::absent || (row.kind == OldRow::Kind::found && knows(*claim, row))) {
        return self->store_->replace(std::move(claim), seen, std::move(done));
      }
      if (!is_over(row)) return done(self->answer_without_write(std::move(row)));
      Record record = self->copy_of(std::move(row), *claim);
      record.token = std::max(record.token, claim->token);
      if (record.state == State::failed) {  // To be tried again, perhaps: after what was tried here.
        record.attempt = std::max(record.attempt, claim->attempt);
        record.steps = claim->steps;
      }
      record.revision = next_revision(seen.revision, static_cast<std::uint32_t>(record.revision));
      const RecordPtr copy = share(std::move(record));
      self->store_->replace(copy, seen, shown(copy, std::move(done)));
    });
  }

 private:
  void look(const RecordPtr& claim, Callback<void(OldRow)> done) {
    old_->look(claim, operate::now(*store_, *clock_), [counts = counts_, done = std::move(done)](OldRow row) mutable {
      counts->count(end_of(row));
      done(std::move(row));
    });
  }

  static LookCounts::End end_of(const OldRow& row) noexcept {
    using End = LookCounts::End;
    if (row.kind == OldRow::Kind::absent) return End::absent;
    if (row.kind == OldRow::Kind::failed) return End::error;
    if (row.record.state == State::failed) return End::failure;
    if (row.record.state != State::completed) return End::in_progress;
    return row.record.result.placement == Placement::dropped ? End::tombstone : End::replayed;
  }

  static bool is_over(const OldRow& row) noexcept {
    return row.kind == OldRow::Kind::found &&
           (row.record.state == State::completed || row.record.state == State::failed);
  }

  // The row is in progress there, or not known.
  Answer answer_without_write(OldRow row) {
    if (row.kind == OldRow::Kind::failed) return Answer::fail(row.error.kind, std::move(row.error.message));
    const Time now = operate::now(*store_, *clock_);
    Record running = std::move(row.record);
    make_insertable(running, row.origin, now, *random_, SIZE_MAX);
    running.state = State::in_progress;
    running.failure = {};
    running.finished_at = Time{};
    running.lease_until = now + ask_again_after;
    running.expires_at = never;
    running.holder = clean_text("the old program (" + running.holder + ")");
    return Answer::refuse(share(std::move(running)));
  }

  // What our store keeps in place of `claim`.
  Record copy_of(OldRow row, const Record& claim) {
    Record record = std::move(row.record);
    record.label = claim.label;  // The caller decides whether people may see it.
    record.history = claim.history;
    record.history.trace = {};
    make_insertable(record, row.origin, operate::now(*store_, *clock_), *random_,
                    store_->capabilities().max_record_bytes);
    return record;
  }

  // The completion of the write of `copy`: the claim was refused, and this is the record in the way.
  static Done shown(RecordPtr copy, Done done) {
    return [copy = std::move(copy), done = std::move(done)](Answer answer) mutable {
      if (answer.status == AnswerStatus::done) {
        answer.status = AnswerStatus::refused;
        answer.record = std::move(copy);
      }
      answer.unfit = false;  // It is not the claim that the store cannot keep.
      done(std::move(answer));
    };
  }

  const std::shared_ptr<Store> store_;
  const std::unique_ptr<OldTable> old_;
  const std::shared_ptr<LookCounts> counts_;
  const std::shared_ptr<Clock> clock_;
  const std::shared_ptr<Random> random_;
};

class FallbackStore final : public Store {
 public:
  explicit FallbackStore(FallbackStoreOptions options)
      : own_prefix_(std::move(options.own_prefix)), looking_(std::make_shared<Looking>(std::move(options))) {}

  void insert(RecordPtr record, Done done) override {
    if (begins_claim(*record)) return looking_->insert(std::move(record), std::move(done));
    store().insert(std::move(record), std::move(done));
  }
  void replace(RecordPtr record, Seen seen, Done done) override {
    const bool takes_over = begins_claim(*record) && !(record->owner == seen.owner);
    if (takes_over) return looking_->take_over(std::move(record), seen, std::move(done));
    store().replace(std::move(record), seen, std::move(done));
  }
  void replace_with(RecordPtr record, Seen seen, std::shared_ptr<const Companion> companion, Done done) override {
    store().replace_with(std::move(record), seen, std::move(companion), std::move(done));
  }
  void remove(std::string key, Seen seen, Done done) override { store().remove(std::move(key), seen, std::move(done)); }
  void get(std::string key, Done done) override { store().get(std::move(key), std::move(done)); }
  void list(ListQuery query, Callback<void(ListPage)> done) override {
    store().list(std::move(query), std::move(done));
  }
  void sweep(Time now, std::size_t limit, Callback<void(SweepAnswer)> done) override {
    store().sweep(now, limit, std::move(done));
  }
  stores::SqlStatement finish_statement(const Record& record, std::uint64_t place) override {
    return store().finish_statement(record, place);
  }

  [[nodiscard]] std::optional<StoreTime> time() const noexcept override { return store().time(); }
  [[nodiscard]] std::optional<StoreTime> time_at(const Clock& clock, Uptime uptime) const noexcept override {
    return store().time_at(clock, uptime);
  }
  [[nodiscard]] Capabilities capabilities() const noexcept override { return store().capabilities(); }
  [[nodiscard]] std::string name() const override { return store().name(); }
  [[nodiscard]] Store* below() const noexcept override { return &store(); }
  [[nodiscard]] StoreGate* gate() noexcept override { return store().gate(); }

 private:
  [[nodiscard]] Store& store() const noexcept { return looking_->store(); }

  // Whether the write begins a claim: not a renewal, a finish, a release, or an operator's act.
  [[nodiscard]] bool begins_claim(const Record& record) const noexcept {
    const bool is_own = !own_prefix_.empty() && record.key.starts_with(own_prefix_);
    return record.state == State::in_progress && !is_released(record) && !is_own;
  }

  const std::string own_prefix_;
  const std::shared_ptr<Looking> looking_;
};

}  // namespace

std::string LookCounts::text() const {
  static constexpr std::array<std::string_view, 6> names{"absent",  "replayed",    "tombstone",
                                                         "failure", "in_progress", "error"};
  text::Exposition out;
  out.family("once_fallback_looks_total", "counter", "Looks into the old table (fallback=), by what it said.");
  for (std::size_t at = 0; at < names.size(); ++at) {
    out.sample({{"outcome", names[at]}}, of(static_cast<End>(at)));
  }
  return std::move(out).take();
}

std::unique_ptr<Store> make_fallback_store(FallbackStoreOptions options) {
  return std::make_unique<FallbackStore>(std::move(options));
}

}  // namespace once::cli::importing
