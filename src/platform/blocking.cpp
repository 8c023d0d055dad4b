#include <once/platform/blocking.hpp>

#include <utility>

#include "platform/wait.hpp"

namespace once::blocking {

Answer insert(Store& store, Record record) {
  return wait_for<Answer>([&](Done done) { store.insert(share(std::move(record)), std::move(done)); });
}

Answer replace(Store& store, Record record, Seen seen) {
  return wait_for<Answer>([&](Done done) { store.replace(share(std::move(record)), seen, std::move(done)); });
}

Answer remove(Store& store, std::string key, Seen seen) {
  return wait_for<Answer>([&](Done done) { store.remove(std::move(key), seen, std::move(done)); });
}

Answer get(Store& store, std::string key) {
  return wait_for<Answer>([&](Done done) { store.get(std::move(key), std::move(done)); });
}

ListPage list(Store& store, ListQuery query) {
  return wait_for<ListPage>([&](Callback<void(ListPage)> done) { store.list(std::move(query), std::move(done)); });
}

SweepAnswer sweep(Store& store, Time now, std::size_t limit) {
  return wait_for<SweepAnswer>([&](Callback<void(SweepAnswer)> done) { store.sweep(now, limit, std::move(done)); });
}

}  // namespace once::blocking
