// The host's clock, randomness and timers. Only this part of the library reads them.
#pragma once

#include <memory>
#include <string>

#include <once/clock.hpp>

namespace once {

// CLOCK_REALTIME and CLOCK_BOOTTIME. One for the whole process.
std::shared_ptr<Clock> system_clock();

// The kernel's (getrandom(2)), one system call a fill. Nothing is kept in memory, so copies of a process, by fork(), by
// a snapshot or by CRIU, draw differently. One for the whole process.
std::shared_ptr<Random> system_random();

// One thread, started by make_ready() or with the first timer; if it cannot be started, both throw
// Exception(unavailable). The destructor waits for a timer that is firing and drops the others. It
// may run on the timers' own thread. In the child of a fork no timer of the parent's object fires. It may be destroyed
// there, which leaves its memory.
std::shared_ptr<Timers> make_system_timers(std::shared_ptr<Clock> clock = system_clock());

// "host:pid", for Record::holder.
std::string process_name();

}  // namespace once
