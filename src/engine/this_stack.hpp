// Tells the stack of one stackful coroutine from those of the others, and from the thread's own.
#pragma once

#include <unwind.h>

#include <cstdint>

namespace once {

// The part of the current stack that is in use. Its frames are walked: some microseconds.
class ThisStack {
 public:
  ThisStack() noexcept {
    _Unwind_Backtrace(
        [](_Unwind_Context* at, void* end) {
          *static_cast<std::uintptr_t*>(end) = _Unwind_GetCFA(at);
          return _URC_NO_REASON;
        },
        &end_);
  }

  // Whether the address is in it. Stacks grow down.
  [[nodiscard]] bool has(std::uintptr_t address) const noexcept { return address >= here_ && address < end_; }

 private:
  const std::uintptr_t here_ = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
  std::uintptr_t end_ = here_;
};

}  // namespace once
