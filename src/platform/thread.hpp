// Threads that the library starts.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include <once/error.hpp>

namespace once {

// The one way to start a thread that is the library's own: all of them block all signals, which are for the program's
// threads. A signal that the program blocks, to read it from a signalfd, would otherwise be delivered here, and kill
// the program. Threads that run the user's handlers keep the mask of the thread that calls the library instead:
// commands that they start inherit it. `Thread` may be std::jthread. Throws std::system_error if no thread can be
// started.
template <class Thread = std::thread, class Run>
Thread start_thread(Run run) {
  sigset_t all{};
  sigset_t before{};
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    Thread thread(std::move(run));
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
  } catch (...) {  // Restores the caller's signals, then rethrows.
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
}

// The same, for callers that report Exceptions. Throws Exception(unavailable) that begins with `who`.
template <class Run>
std::thread start_thread_of(const std::string& who, Run run) {
  try {
    return start_thread(std::move(run));
  } catch (const std::system_error& error) {
    throw Exception(ErrorKind::unavailable,
                    who + ": cannot start a thread: " + error.code().message() +
                        ": raise the limit of processes and threads (ulimit -u, TasksMax=, a container's limit of "
                        "pids) or of memory");
  }
}

}  // namespace once
