// Which boot of the host this is, and how far this process's CLOCK_BOOTTIME is ahead of the host's. Needed wherever
// processes compare uptimes through a file.
#pragma once

#include <chrono>
#include <string>

namespace once {

struct HostBoot {
  std::string id;                           // The kernel's name for the boot.
  std::chrono::nanoseconds clock_ahead{0};  // Not 0 in a time namespace: time_namespaces(7).
};

// Reads it from /proc, or what is mounted elsewhere. Throws Exception(misuse) if it cannot be known: trying again does
// not help, and a guess could start an operation beside a live claim.
HostBoot host_boot(const std::string& proc = "/proc");

// Whether a fork() has the same CLOCK_BOOTTIME: false after unshare(CLONE_NEWTIME), until the next execve().
bool children_share_clock(const std::string& proc = "/proc") noexcept;

}  // namespace once
