// Threads that the library starts.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace once {

// A thread of ours takes no signals: those are for the threads of the program. Throws std::system_error if there is
// none to be had.
template <class Run>
std::thread start_thread(Run run) {
  sigset_t all{};
  sigset_t before{};
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread thread(std::move(run));
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
  } catch (...) {  // The caller's signals are his again, and he is told.
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
}

}  // namespace once
