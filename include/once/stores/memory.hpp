// A store in the memory of one process: for tests, for programs of one process, and as the model that tests compare
// other stores with.
#pragma once

#include <memory>

#include <once/clock.hpp>
#include <once/platform/system.hpp>
#include <once/store.hpp>

namespace once::stores {

// Keeps its records until it is destroyed. Completes every operation before it returns. Its time is the clock's uptime,
// starting at the clock's UTC when the store was made. So a jump of the clock moves no lease. Records of up to 64 MiB;
// their number is limited only by memory, so sweep it.
std::unique_ptr<Store> make_memory_store(std::shared_ptr<Clock> clock = system_clock());

}  // namespace once::stores
