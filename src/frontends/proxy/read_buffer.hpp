// Bytes read from a socket, and not consumed yet.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>

namespace once::proxy {

// One block of memory. Consumed bytes stay in place until the next prepare(), so that a piece of a body can be
// forwarded without a copy.
class ReadBuffer {
 public:
  explicit ReadBuffer(std::size_t max_bytes) noexcept : max_(max_bytes) {}

  [[nodiscard]] std::string_view view() const noexcept { return {bytes_.get() + begin_, size()}; }
  [[nodiscard]] std::size_t size() const noexcept { return end_ - begin_; }
  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
  [[nodiscard]] std::size_t max_size() const noexcept { return max_; }

  // Room for `room` bytes after the present ones, in total at most max_size().
  std::span<char> prepare(std::size_t room) {
    const std::size_t kept = size();
    if (kept + room > capacity_) {
      const std::size_t wanted = std::max(kept + room, std::min(2 * capacity_, max_));
      auto grown = std::make_unique_for_overwrite<char[]>(wanted);
      if (kept != 0) std::memcpy(grown.get(), bytes_.get() + begin_, kept);
      bytes_ = std::move(grown);
      capacity_ = wanted;
      begin_ = 0;
      end_ = kept;
    } else if (end_ + room > capacity_) {
      std::memmove(bytes_.get(), bytes_.get() + begin_, kept);
      begin_ = 0;
      end_ = kept;
    }
    return {bytes_.get() + end_, room};
  }
  void commit(std::size_t count) noexcept { end_ += count; }
  void consume(std::size_t count) noexcept {
    begin_ += count;
    if (begin_ == end_) begin_ = end_ = 0;
  }
  void clear() noexcept { begin_ = end_ = 0; }

  // Frees the memory if it is empty.
  void release() noexcept {
    if (size() != 0) return;
    bytes_.reset();
    capacity_ = 0;
  }

 private:
  std::unique_ptr<char[]> bytes_;
  std::size_t max_;
  std::size_t capacity_ = 0;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace once::proxy
