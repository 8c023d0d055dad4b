#include "platform/home.hpp"

#include <utility>

namespace once {

namespace {

std::shared_ptr<Home>& home_here() noexcept {
  thread_local std::shared_ptr<Home> here;
  return here;
}

}  // namespace

const std::shared_ptr<Home>& home() noexcept { return home_here(); }

AtHome::AtHome(std::shared_ptr<Home> home) noexcept : before_(std::move(home)) { home_here().swap(before_); }
AtHome::~AtHome() { home_here().swap(before_); }

}  // namespace once
