// A function object that can be moved but not copied: the type of completions.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#include <once/compiler.hpp>

namespace once {

// Only defined for the signature of a function, R(Args...).
template <class Signature>
class Callback;

// Holds any movable callable, up to 48 bytes of it inline. So the usual completion (a shared pointer and a few words)
// costs no allocation. Like C++23's std::move_only_function, which g++ 12 in C++20 mode and clang 14 lack. Calling an
// empty Callback is undefined. Not thread-safe.
template <class R, class... Args>
class Callback<R(Args...)> {
 public:
  Callback() noexcept = default;
  Callback(std::nullptr_t) noexcept {}  // Empty.

  // Moves or copies `f` in. Allocates if `f` has more than 48 bytes, or may throw when it is moved.
  template <class F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, Callback> && std::is_invocable_r_v<R, std::decay_t<F>&, Args...>)
  Callback(F&& f) {
    using Target = std::decay_t<F>;
    if constexpr (fits<Target>) {
      ::new (static_cast<void*>(buffer_)) Target(std::forward<F>(f));
      table_ = &inline_table<Target>;
    } else {
      ::new (static_cast<void*>(buffer_)) Target*(new Target(std::forward<F>(f)));
      table_ = &heap_table<Target>;
    }
  }

  Callback(Callback&& other) noexcept : table_(std::exchange(other.table_, nullptr)) {
    if (table_ != nullptr) table_->move(buffer_, other.buffer_);
  }
  Callback& operator=(Callback&& other) noexcept {
    if (this != &other) {
      reset();
      table_ = std::exchange(other.table_, nullptr);
      if (table_ != nullptr) table_->move(buffer_, other.buffer_);
    }
    return *this;
  }
  Callback(const Callback&) = delete;
  Callback& operator=(const Callback&) = delete;
  ~Callback() { reset(); }

  explicit operator bool() const noexcept { return table_ != nullptr; }  // False: empty.
  // As often as the callable allows.
  R operator()(Args... args) { return table_->call(buffer_, std::forward<Args>(args)...); }

 private:
  static constexpr std::size_t inline_bytes = 48;

  template <class F>
  static constexpr bool fits =
      sizeof(F) <= inline_bytes && alignof(F) <= alignof(std::max_align_t) && std::is_nothrow_move_constructible_v<F>;

  struct Table {
    R (*call)(std::byte*, Args&&...);
    void (*move)(std::byte*, std::byte*) noexcept;  // Moves into raw memory and destroys the source.
    void (*destroy)(std::byte*) noexcept;
  };

  template <class F>
  static F* as(std::byte* buffer) noexcept {
    return std::launder(reinterpret_cast<F*>(buffer));
  }

  // With a void signature the result is dropped, as std::invoke_r does.
  template <class F>
  static R invoke(F& f, Args&&... args) {
    if constexpr (std::is_void_v<R>) {
      static_cast<void>(f(std::forward<Args>(args)...));
    } else {
      return f(std::forward<Args>(args)...);
    }
  }

  template <class F>
  static constexpr Table inline_table = {
      [](std::byte* b, Args&&... args) -> R { return invoke(*as<F>(b), std::forward<Args>(args)...); },
      [](std::byte* to, std::byte* from) noexcept {
        ::new (static_cast<void*>(to)) F(std::move(*as<F>(from)));
        as<F>(from)->~F();
      },
      [](std::byte* b) noexcept { as<F>(b)->~F(); }};

  template <class F>
  static constexpr Table heap_table = {
      [](std::byte* b, Args&&... args) -> R { return invoke(**as<F*>(b), std::forward<Args>(args)...); },
      [](std::byte* to, std::byte* from) noexcept { ::new (static_cast<void*>(to)) F*(*as<F*>(from)); },
      [](std::byte* b) noexcept { delete *as<F*>(b); }};

  void reset() noexcept {
    if (table_ != nullptr) std::exchange(table_, nullptr)->destroy(buffer_);
  }

  const Table* table_ = nullptr;
  alignas(std::max_align_t) std::byte buffer_[inline_bytes];
};

}  // namespace once
