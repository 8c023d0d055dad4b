#include "real_store.hpp"

namespace once::simulation {

template <class Call>
void RealFront::ask(Asking asking, Done done, Call&& call) {
  if (host_.life() != life_) return;  // The process is dead; no caller waits for the answer.
  const auto asked = std::make_shared<const Asking>(std::move(asking));
  simulation_.asks(id_, *asked);
  const auto before = real_.asks(asked);
  call([this, asked, done = std::move(done)](Answer answer) mutable {
    if (host_.life() != life_) return;
    simulation_.guarded([&] { simulation_.answers(id_, *asked, std::move(answer), done); });
  });
  real_.asks(before);
}

void RealFront::insert(RecordPtr record, Done done) {
  ask({.how = Wrote::insert, .key = record->key, .next = *record}, std::move(done),
      [&](Done then) { store_.insert(record, std::move(then)); });
}

void RealFront::replace(RecordPtr record, Seen seen, Done done) {
  ask({.how = Wrote::replace, .key = record->key, .next = *record, .seen = seen}, std::move(done),
      [&](Done then) { store_.replace(record, seen, std::move(then)); });
}

void RealFront::replace_with(RecordPtr record, Seen seen, std::shared_ptr<const Companion> companion, Done done) {
  auto writes = real_.companion_of(dynamic_cast<const Charge&>(*companion));
  ask({.how = Wrote::replace, .key = record->key, .next = *record, .seen = seen, .companion = std::move(companion)},
      std::move(done), [&](Done then) { store_.replace_with(record, seen, std::move(writes), std::move(then)); });
}

void RealFront::remove(std::string key, Seen seen, Done done) {
  ask({.how = Wrote::remove, .key = key, .next = std::nullopt, .seen = seen}, std::move(done),
      [&](Done then) { store_.remove(key, seen, std::move(then)); });
}

void RealFront::get(std::string key, Done done) {
  ask({.reads = true, .key = key, .next = std::nullopt}, std::move(done),
      [&](Done then) { store_.get(key, std::move(then)); });
}

void check_list(Simulation& simulation, Store& store) {
  std::size_t listed = 0;
  ListQuery query{.limit = 3};
  do {
    ListPage page;
    store.list(query, [&](ListPage got) { page = std::move(got); });
    if (page.error || !page.unreadable.empty()) throw Violation("store: it cannot be listed");
    for (const Record& record : page.records) {
      const Record* kept = simulation.auditor().shadow(record.key);
      if (kept == nullptr || !(*kept == record))
        throw Violation("store: " + record.key + " is listed as another record");
    }
    listed += page.records.size();
    query.cursor = page.cursor;
  } while (!query.cursor.empty());
  if (listed != simulation.records().size()) throw Violation("store: not all records are listed");
}

Capabilities RealFront::capabilities() const noexcept {
  Capabilities capabilities = store_.capabilities();
  capabilities.default_skew = simulation_.config().skew;
  capabilities.keeps_compressed = capabilities.keeps_compressed && simulation_.config().compresses;
  return capabilities;
}

}  // namespace once::simulation
