#include "platform/host_boot.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <sstream>
#include <string_view>

#include <once/error.hpp>

#include "platform/file.hpp"

namespace once {

namespace {

// The host's own: PROC_TIME_INIT_INO in the kernel's include/linux/proc_ns.h, TIME_NS_INIT_INO in
// include/uapi/linux/nsfs.h.
constexpr std::string_view host_namespace = "time:[4026531834]";

constexpr std::size_t max_file_bytes = 4096;
constexpr std::int64_t max_offset_s = std::int64_t{1} << 32U;  // The kernel allows less: 146 years (timens_offsets).

[[noreturn]] void refuse(const std::string& what) {
  throw Exception(ErrorKind::misuse, what + ". So the times in the file cannot be compared with this process's clock");
}

// Empty, with errno: it cannot be read.
std::optional<std::string> link(const std::string& path) {
  std::array<char, 64> target{};
  const ssize_t count = readlink(path.c_str(), target.data(), target.size());
  if (count < 0) return std::nullopt;
  return std::string(target.data(), static_cast<std::size_t>(count));
}

std::string boot_id(const std::string& proc) {
  const std::string path = proc + "/sys/kernel/random/boot_id";
  std::string id;
  const int error = read_file(path, max_file_bytes, id);
  if (error == 0) {
    id.resize(std::min(id.size(), id.find('\n')));
    if (!id.empty()) return id;
    refuse(path + " is empty");
  }
  const bool is_mounted = link(proc + "/self").has_value() || access((proc + "/self").c_str(), F_OK) == 0;
  refuse("cannot read " + path + ": " + std::strerror(error) + ": " +
         (is_mounted ? "it is hidden: with systemd remove ProcSubset=pid (or set ProcSubset=all), with a container let "
                       "it read /proc/sys"
                     : "mount /proc"));
}

// "boottime 86400 0": seconds and nanoseconds.
std::optional<std::chrono::nanoseconds> boottime_offset(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string clock;
    if (!(words >> clock) || clock != "boottime") continue;
    std::int64_t s = 0;
    std::int64_t ns = 0;
    std::string more;
    if (!(words >> s >> ns) || words >> more) return std::nullopt;
    if (s < -max_offset_s || s > max_offset_s || ns < 0 || ns >= 1'000'000'000) return std::nullopt;
    return std::chrono::seconds(s) + std::chrono::nanoseconds(ns);
  }
  return std::nullopt;
}

// timens_offsets has the offsets of the children's namespace. They are this process's own if it shares it.
std::chrono::nanoseconds clock_ahead(const std::string& proc) {
  const std::string self = proc + "/self";
  const auto own = link(self + "/ns/time");
  if (!own) {
    const int error = errno;
    if (error == ENOENT && link(self + "/ns/mnt")) return {};  // A kernel without time namespaces.
    if (error == ENOENT)
      refuse(self +
             " is missing: mount a /proc of this process's PID namespace, and not "
             "of another PID namespace");
    refuse("cannot read " + self + "/ns/time: " + std::strerror(error));
  }
  if (*own == host_namespace) return {};
  if (!children_share_clock(proc)) {
    refuse("this process is in the time namespace " + *own + " and its children are not (" + self +
           "/ns/time_for_children), so its offsets cannot be read: start the program as a child of whatever made "
           "the namespace (unshare --fork)");
  }
  const std::string path = self + "/timens_offsets";
  std::string text;
  if (const int error = read_file(path, max_file_bytes, text); error != 0) {
    refuse("cannot read " + path + ": " + std::strerror(error));
  }
  const auto offset = boottime_offset(text);
  if (!offset) refuse(path + " has no offset of the boottime clock");
  return *offset;
}

}  // namespace

HostBoot host_boot(const std::string& proc) { return {.id = boot_id(proc), .clock_ahead = clock_ahead(proc)}; }

bool children_share_clock(const std::string& proc) noexcept {
  return link(proc + "/self/ns/time") == link(proc + "/self/ns/time_for_children");
}

}  // namespace once
