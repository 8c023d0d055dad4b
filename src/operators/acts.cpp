#include "operators/acts.hpp"

#include <algorithm>
#include <memory>
#include <mutex>
#include <span>

#include <once/platform/blocking.hpp>
#include <once/platform/system.hpp>

#include "platform/wait.hpp"

namespace once::operators {

namespace {

constexpr std::size_t keys_at_once = 16;  // That are read from the store.

// Puts a record where it belongs in a selection.
struct Planned {
  const StoreAccess& access;
  Time now;
  const operate::Reason& reason;
  const Act& act;
  const Selecting& selecting;
  Selection& selection;

  void add(const Record& record) const {
    ++selection.matched;
    if (record.created_at != Time{}) {
      selection.oldest = std::min(selection.oldest.value_or(never), record.created_at);
    }
    if (selecting.as_seen && !selecting.as_seen(record)) {
      selection.left[{LeftBecause::changed, "changed since it was selected"}].push_back(record.key);
      return;
    }
    operate::Plan plan = act.planner(record, reason, fresh_stamp(now), access.store->capabilities().default_skew);
    if (!plan.next) {
      selection.left[{LeftBecause::refused, std::move(plan.refusal)}].push_back(record.key);
      return;
    }
    if (selecting.each) selecting.each(record);
    selection.records.push_back({.stored_key = record.key, .owner = record.owner, .revision = record.revision});
  }
};

// The answers for all of these keys, which are asked for at the same time.
std::vector<Answer> get_all(Store& store, std::span<const std::string> keys) {
  struct Gathered {
    std::mutex mutex;
    std::vector<Answer> answers;
    std::size_t missing = 0;
  };
  return wait_for<std::vector<Answer>>([&](Callback<void(std::vector<Answer>)> done) {
    const auto all = std::make_shared<Gathered>();
    all->answers.resize(keys.size());
    all->missing = keys.size();
    const auto end = std::make_shared<Callback<void(std::vector<Answer>)>>(std::move(done));
    for (std::size_t at = 0; at < keys.size(); ++at) {
      store.get(keys[at], [all, end, at](Answer answer) {
        {
          const std::lock_guard lock(all->mutex);
          all->answers[at] = std::move(answer);
          if (--all->missing > 0) return;
        }
        (*end)(std::move(all->answers));
      });
    }
  });
}

}  // namespace

Selection select(const StoreAccess& access, const operate::Filter& filter, Time now, const operate::Reason& reason,
                 const Act& act, std::size_t most, const Selecting& selecting) {
  Selection selection;
  Planned planned{access, now, reason, act, selecting, selection};
  selection.error = operate::for_each(
      *access.store, filter, now,
      [&](const Record& record) {
        if (selecting.matches && !selecting.matches(record)) return true;
        selection.bounded = selection.matched == most;
        if (!selection.bounded) planned.add(record);
        return !selection.bounded;
      },
      selecting.go_on);
  return selection;
}

Selection select_keys(const StoreAccess& access, const std::vector<std::string>& keys, Time now,
                      const operate::Reason& reason, const Act& act, const Selecting& selecting) {
  Selection selection;
  Planned planned{access, now, reason, act, selecting, selection};
  std::uint64_t read = 0;
  for (std::size_t first = 0; first < keys.size(); first += keys_at_once) {
    if (selecting.go_on && !selecting.go_on(read)) break;
    const std::vector<Answer> answers =
        get_all(*access.store, std::span(keys).subspan(first).first(std::min(keys_at_once, keys.size() - first)));
    for (std::size_t at = 0; at < answers.size(); ++at) {
      const Answer& found = answers[at];
      const std::string& key = keys[first + at];
      ++read;
      if (found.status == AnswerStatus::failed && found.error.kind != ErrorKind::corrupt) {
        selection.error = found.error;
        if (selecting.go_on) selecting.go_on(read);
        return selection;
      }
      if (found.status == AnswerStatus::failed) {
        selection.left[{LeftBecause::failed, found.error.message}].push_back(key);
      } else if (!found.record) {
        selection.left[{LeftBecause::gone, "there is no such record"}].push_back(key);
      } else {
        planned.add(*found.record);
      }
    }
  }
  if (selecting.go_on) selecting.go_on(read);
  return selection;
}

Carried carry_out_one(const StoreAccess& access, const Counted& record, const operate::Reason& reason, const Act& act) {
  Changed changed = change_record(access,
                                  {.stored_key = record.stored_key,
                                   .reason = reason,
                                   .if_revision = record.revision,
                                   .if_owner = record.owner,
                                   .removes = act.removes},
                                  act.planner);
  Carried carried{.left = {}, .why = {}, .remark = std::move(changed.remark), .ends = {}};
  switch (changed.kind) {
    case Changed::Kind::written:
    case Changed::Kind::planned:
      break;
    case Changed::Kind::no_record:
      carried.left = LeftBecause::gone;
      carried.why = "gone meanwhile";
      break;
    case Changed::Kind::other:
    case Changed::Kind::raced:
      carried.left = LeftBecause::changed;
      carried.why = "changed meanwhile";
      break;
    case Changed::Kind::refused:  // It has expired, or the service was asked again, for example.
      carried.left = LeftBecause::refused;
      carried.why = std::move(changed.refusal);
      break;
    case Changed::Kind::failed:
      carried.left = LeftBecause::failed;
      carried.why = changed.error.message;
      // One damaged record does not stop the others. After another failure all of them would fail, each in its time.
      if (changed.error.kind != ErrorKind::corrupt && !changed.unfit) carried.ends = std::move(changed.error);
      break;
  }
  return carried;
}

CarriedOut carry_out(const StoreAccess& access, const std::vector<Counted>& records, const operate::Reason& reason,
                     const Act& act, const std::function<bool(std::uint64_t done)>& go_on, Left& left) {
  CarriedOut carried;
  for (auto at = records.begin(); at != records.end(); ++at) {
    const auto leave = [&](LeftBecause because, std::string why) {
      left[{because, std::move(why)}].push_back(at->stored_key);
    };
    if (carried.error || !go_on(carried.done)) {
      leave(LeftBecause::not_reached, "not reached");
      for (++at; at != records.end(); ++at) leave(LeftBecause::not_reached, "not reached");
      break;
    }
    Carried one = carry_out_one(access, *at, reason, act);
    if (!one.remark.empty()) carried.remarks.push_back(std::move(one.remark));
    if (!one.left) {
      carried.done += 1;
    } else if (*one.left == LeftBecause::failed) {
      leave(LeftBecause::failed, std::move(one.why));
      carried.error = std::move(one.ends);
    } else {
      leave(LeftBecause::changed, "changed meanwhile");
    }
  }
  return carried;
}

}  // namespace once::operators
