#include "stores/sqlite/operation.hpp"

#include <algorithm>
#include <utility>

#include "platform/forks.hpp"

namespace once::stores::sqlite {

namespace {

// `forks_before`: when they were answered.
void complete(Group& group, unsigned forks_before) {
  for (OperationPtr& operation : group) {
    if (forks() != forks_before) return;
    operation->done(std::move(operation->answer));
    if (forks() == forks_before) operation.reset();
  }
}

std::shared_ptr<Home> first_home(const Group& group) {
  const auto found =
      std::ranges::find_if(group, [](const OperationPtr& operation) { return operation->home != nullptr; });
  return found == group.end() ? nullptr : (*found)->home;
}

}  // namespace

void finish(Group& group) {
  const unsigned forks_before = forks();
  while (!group.empty() && forks() == forks_before) {
    const std::shared_ptr<Home> home = first_home(group);
    if (!home) break;
    Group own;
    Group others;
    for (OperationPtr& operation : group) (operation->home == home ? own : others).push_back(std::move(operation));
    group.swap(others);
    Callback<void()> work = [own = std::move(own), forks_before]() mutable { complete(own, forks_before); };
    if (!home->bring(work)) work();
  }
  complete(group, forks_before);
  group.clear();
}

}  // namespace once::stores::sqlite
