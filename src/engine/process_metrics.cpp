#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include <once/engine/metrics.hpp>

#include "platform/file.hpp"
#include "text/number.hpp"
#include "text/prometheus.hpp"

namespace once {

namespace {

#ifdef __clang__
constexpr std::string_view compiler = "clang " __clang_version__;
#else
constexpr std::string_view compiler = "gcc " __VERSION__;
#endif

std::string file_of_proc(const char* path) {
  constexpr std::size_t most = 1024 * 1024;
  std::string text;
  return read_file(path, most, text) == 0 ? text : std::string();
}

// The word at a place, counted from 0.
std::optional<std::uint64_t> number_at(std::string_view text, std::size_t place) {
  for (; place != 0; --place) text = text.substr(std::min(text.size(), text.find(' ') + 1));
  return text::parse_whole<std::uint64_t>(text.substr(0, text.find_first_of(" \n")));
}

// Since 1970, in seconds. proc(5): ticks since the boot, whose time has a line in /proc/stat.
std::optional<double> start_time(std::string_view fields) {
  constexpr std::size_t starttime = 19;  // Its number in proc(5), 22, less the 3 before and of `fields`.
  const std::string system = file_of_proc("/proc/stat");
  constexpr std::string_view word = "\nbtime ";
  const std::size_t line = system.find(word);
  const auto ticks = number_at(fields, starttime);
  if (line == std::string::npos || !ticks) return std::nullopt;
  const auto boot = number_at(std::string_view(system).substr(line + word.size()), 0);
  if (!boot) return std::nullopt;
  return static_cast<double>(*boot) + static_cast<double>(*ticks) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

// Linux 6.2 and later tell it as a size. Counting takes a while for a hundred thousand.
std::optional<std::uint64_t> open_files() {
  const char* const folder = "/proc/self/fd";
  struct stat status {};
  if (stat(folder, &status) == 0 && status.st_size > 0) return static_cast<std::uint64_t>(status.st_size);
  std::error_code error;
  std::uint64_t files = 0;
  std::filesystem::directory_iterator at(folder, error);
  for (; !error && at != std::filesystem::directory_iterator(); at.increment(error)) ++files;
  if (error || files == 0) return std::nullopt;
  return files - 1;  // One of them is this iterator's.
}

}  // namespace

std::string process_metrics() {
  text::Exposition out;
  const auto metric = [&](std::string_view name, std::string_view type, std::string_view help, const auto& value) {
    if (!value) return;
    out.family(name, type, help);
    out.sample({}, *value);
  };
  out.family("once_build_info", "gauge", "1. The labels describe the build.");
  out.sample({{"version", ONCE_VERSION}, {"compiler", compiler}}, 1);

  rusage used{};
  std::optional<double> cpu;
  if (getrusage(RUSAGE_SELF, &used) == 0) {
    constexpr double microsecond = 1e-6;
    cpu = static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
          static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * microsecond;
  }
  metric("process_cpu_seconds_total", "counter", "Processor time, of user and system.", cpu);

  const std::string statistics = file_of_proc("/proc/self/stat");
  // After the program's name, which is in brackets and may have brackets and blanks itself.
  const std::string_view fields =
      std::string_view(statistics).substr(std::min(statistics.size(), statistics.rfind(')') + 2));
  metric("process_start_time_seconds", "gauge", "When the process started, since 1970.", start_time(fields));
  constexpr std::size_t vsize = 20;  // As for starttime.
  metric("process_virtual_memory_bytes", "gauge", "Virtual memory.", number_at(fields, vsize));
  auto resident = number_at(fields, vsize + 1);
  if (resident) *resident *= static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  metric("process_resident_memory_bytes", "gauge", "Resident memory.", resident);

  metric("process_open_fds", "gauge", "Open file descriptors.", open_files());
  rlimit limit{};
  std::optional<double> most;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    most = static_cast<double>(limit.rlim_cur);
  }
  metric("process_max_fds", "gauge", "The limit of open file descriptors.", most);
  return std::move(out).take();
}

}  // namespace once
