#include "platform/completion_loop.hpp"

#include <utility>

namespace once {

namespace {

std::shared_ptr<CompletionLoop>& loop_here() noexcept {
  thread_local std::shared_ptr<CompletionLoop> here;
  return here;
}

}  // namespace

const std::shared_ptr<CompletionLoop>& completion_loop() noexcept { return loop_here(); }

CompletionLoopScope::CompletionLoopScope(std::shared_ptr<CompletionLoop> loop) noexcept : before_(std::move(loop)) {
  loop_here().swap(before_);
}
CompletionLoopScope::~CompletionLoopScope() { loop_here().swap(before_); }

}  // namespace once
