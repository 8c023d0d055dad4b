// A queue from many threads to one, which takes all nodes at once.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace once::stores::sqlite {

// Node has a member `Node* next`. The queue owns nothing.
template <class Node>
class GroupQueue {
 public:
  // From any thread.
  void push(Node* node) noexcept {
    Node* head = head_.load(std::memory_order_relaxed);
    do {
      node->next = head;
    } while (!head_.compare_exchange_weak(head, node));
    if (head == nullptr) wake();  // The first push wakes the thread, which takes later ones too.
  }

  // Makes wait() return once without a node. From any thread.
  void nudge() noexcept {
    nudged_.store(true);
    wake();
  }

  // Only from the taking thread: sleeps until there is a node, or nudge() was called.
  void wait() noexcept {
    for (;;) {
      if (head_.load() != nullptr || nudged_.exchange(false)) return;
      asleep_.store(1);
      if (head_.load() == nullptr && !nudged_.load()) {
        syscall(SYS_futex, &asleep_, FUTEX_WAIT_PRIVATE, 1, nullptr, nullptr, 0);
      }
      asleep_.store(0);
    }
  }

  // Only from the taking thread: all nodes, oldest first; null if none.
  Node* take() noexcept {
    Node* newest = head_.exchange(nullptr);
    Node* oldest = nullptr;
    while (newest != nullptr) {
      Node* const before = newest->next;
      newest->next = oldest;
      oldest = newest;
      newest = before;
    }
    return oldest;
  }

 private:
  void wake() noexcept {
    if (asleep_.load() == 1 && asleep_.exchange(0) == 1) {
      syscall(SYS_futex, &asleep_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
    }
  }

  std::atomic<Node*> head_{nullptr};
  std::atomic<bool> nudged_{false};
  alignas(64) std::atomic<std::uint32_t> asleep_{0};
};

}  // namespace once::stores::sqlite
