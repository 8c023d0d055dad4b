#include "stores/sqlite/operation.hpp"

#include <algorithm>
#include <utility>

#include "platform/forks.hpp"
#include "platform/wait.hpp"

namespace once::stores::sqlite {

namespace {

// `forks_before`: when they were answered.
void complete(Group& group, unsigned forks_before) {
  const WakesAfter completions;
  for (OperationPtr& operation : group) {
    if (forks() != forks_before) return;
    operation->done(std::move(operation->answer));
    if (forks() == forks_before) operation.reset();
  }
}

std::shared_ptr<CompletionLoop> first_loop(const Group& group) {
  const auto found =
      std::ranges::find_if(group, [](const OperationPtr& operation) { return operation->completes_on != nullptr; });
  return found == group.end() ? nullptr : (*found)->completes_on;
}

}  // namespace

void finish(Group& group) {
  const unsigned forks_before = forks();
  while (!group.empty() && forks() == forks_before) {
    const std::shared_ptr<CompletionLoop> loop = first_loop(group);
    if (!loop) break;
    Group own;
    Group others;
    for (OperationPtr& operation : group)
      (operation->completes_on == loop ? own : others).push_back(std::move(operation));
    group.swap(others);
    Callback<void()> work = [own = std::move(own), forks_before]() mutable { complete(own, forks_before); };
    if (!loop->try_post(work)) work();
  }
  complete(group, forks_before);
  group.clear();
}

}  // namespace once::stores::sqlite
