// The store of one process: for tests, for programs of one process, and as the model that other stores are compared
// with.
#pragma once

#include <memory>

#include <once/clock.hpp>
#include <once/platform/system.hpp>
#include <once/store.hpp>

namespace once::stores {

// Keeps its records in memory until it is destroyed. Completes every operation before it returns. Its time is the
// clock's uptime, counted from the clock's UTC when the store was made, so that a jump of the clock moves no lease.
// Holds records of up to 64 MiB; what it holds altogether is bounded by memory only: sweep it.
std::unique_ptr<Store> make_memory_store(std::shared_ptr<Clock> clock = system_clock());

}  // namespace once::stores
