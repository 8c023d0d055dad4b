// The host's own clock, randomness and timers: the only place of the library that reads them.
#pragma once

#include <memory>
#include <string>

#include <once/clock.hpp>

namespace once {

// CLOCK_REALTIME and CLOCK_BOOTTIME. One for the whole process.
std::shared_ptr<Clock> system_clock();

// The kernel's generator (getrandom), read in blocks of a thread's own; after a thread's first block OpenSSL's, which
// it seeds. One for the whole process; safe across fork.
std::shared_ptr<Random> system_random();

// One thread, started with the first timer. The destructor waits for a timer that is firing and drops the others;
// it may run on the timers' own thread.
std::shared_ptr<Timers> make_system_timers(std::shared_ptr<Clock> clock = system_clock());

// "host:pid", for Record::holder.
std::string process_name();

}  // namespace once
