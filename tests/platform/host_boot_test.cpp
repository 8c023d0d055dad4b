// What a process knows of its host's boot: from trees that look like /proc, and in real time namespaces.
#include "platform/host_boot.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <once/error.hpp>
#include <once/platform/system.hpp>

namespace once::host_boot_test {
namespace {

namespace fs = std::filesystem;
using std::chrono::nanoseconds;
using std::chrono::seconds;

constexpr const char* the_hosts = "time:[4026531834]";

class Proc {
 public:
  Proc() {
    std::string name = (fs::temp_directory_path() / "once-proc-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw Exception(ErrorKind::unavailable, "no directory");
    path_ = name;
    fs::create_directories(path_ / "self/ns");
    fs::create_directories(path_ / "sys/kernel/random");
    fs::create_symlink("mnt:[4026531832]", path_ / "self/ns/mnt");
    write("sys/kernel/random/boot_id", "a-boot\n");
  }
  Proc(const Proc&) = delete;
  Proc& operator=(const Proc&) = delete;
  ~Proc() { fs::remove_all(path_); }

  void write(const char* name, const std::string& text) const { std::ofstream(path_ / name) << text; }
  void link(const char* name, const std::string& target) const { fs::create_symlink(target, path_ / "self/ns" / name); }
  void in(const std::string& own, const std::string& children) const {
    link("time", own);
    link("time_for_children", children);
  }
  [[nodiscard]] HostBoot boot() const { return host_boot(path_.string()); }
  [[nodiscard]] std::string refusal() const {
    try {
      static_cast<void>(boot());
    } catch (const Exception& error) {
      EXPECT_EQ(error.kind(), ErrorKind::misuse);
      return error.what();
    }
    return "not refused";
  }
  [[nodiscard]] fs::path operator/(const char* name) const { return path_ / name; }

 private:
  fs::path path_;
};

TEST(HostBoot, IsUnshiftedInTheHostsNamespace) {
  const Proc proc;
  proc.in(the_hosts, the_hosts);
  EXPECT_EQ(proc.boot().id, "a-boot");
  EXPECT_EQ(proc.boot().clock_ahead, nanoseconds{0});
}

TEST(HostBoot, IsUnshiftedWithoutTimeNamespaces) {
  const Proc proc;  // Kernels before 5.6, or without CONFIG_TIME_NS.
  EXPECT_EQ(proc.boot().clock_ahead, nanoseconds{0});
  EXPECT_TRUE(children_share_clock((proc / "").string()));
}

TEST(HostBoot, IsShiftedInAnotherNamespace) {
  const Proc proc;
  proc.in("time:[4026532177]", "time:[4026532177]");
  proc.write("self/timens_offsets", "monotonic         100         0\nboottime       86400         5\n");
  EXPECT_EQ(proc.boot().clock_ahead, seconds(86400) + nanoseconds(5));
  // Before zero, the kernel counts nanoseconds upwards from the second below.
  proc.write("self/timens_offsets", "monotonic           0         0\nboottime          -2 999999999\n");
  EXPECT_EQ(proc.boot().clock_ahead, nanoseconds(-1'000'000'001));
}

TEST(HostBoot, ChildrensOffsetsAreNotItsOwn) {
  const Proc proc;
  proc.in(the_hosts, "time:[4026532177]");
  proc.write("self/timens_offsets", "monotonic           0         0\nboottime       86400         0\n");
  EXPECT_EQ(proc.boot().clock_ahead, nanoseconds{0});
  EXPECT_FALSE(children_share_clock((proc / "").string()));
}

TEST(HostBoot, UnknownOffsetsAreRefused) {
  const Proc proc;
  proc.in("time:[4026532177]", "time:[4026532200]");
  proc.write("self/timens_offsets", "monotonic           0         0\nboottime       86400         0\n");
  EXPECT_NE(proc.refusal().find("time_for_children"), std::string::npos) << proc.refusal();
  fs::remove(proc / "self/ns/time_for_children");
  proc.link("time_for_children", "time:[4026532177]");
  for (const char* const text : {"", "monotonic 0 0\n", "boottime 1\n", "boottime x 0\n", "boottime 1 0 0\n",
                                 "boottime 1 1000000000\n", "boottime 9999999999 0\n"}) {
    proc.write("self/timens_offsets", text);
    EXPECT_NE(proc.refusal().find("timens_offsets"), std::string::npos) << text << ": " << proc.refusal();
  }
  fs::remove(proc / "self/timens_offsets");
  EXPECT_NE(proc.refusal().find("timens_offsets"), std::string::npos) << proc.refusal();
}

TEST(HostBoot, ProcOfAnotherPidNamespaceIsRefused) {
  const Proc proc;
  fs::remove_all(proc / "self");
  EXPECT_NE(proc.refusal().find("of another PID namespace"), std::string::npos) << proc.refusal();
}

TEST(HostBoot, AHiddenBootIdIsRefused) {
  const Proc proc;
  proc.in(the_hosts, the_hosts);
  proc.write("sys/kernel/random/boot_id", "\n");
  EXPECT_NE(proc.refusal().find("is empty"), std::string::npos) << proc.refusal();
  fs::remove_all(proc / "sys");  // ProcSubset=pid.
  EXPECT_NE(proc.refusal().find("ProcSubset=all"), std::string::npos) << proc.refusal();
  fs::remove_all(proc / "self");
  EXPECT_NE(proc.refusal().find("mount /proc"), std::string::npos) << proc.refusal();
}

// Makes a time namespace for its children whose clock is so far ahead of the host's.
bool unshare_time(int ahead_s) {
  constexpr int new_time = 0x80;  // CLONE_NEWTIME (linux/sched.h), which the C library's header has since 2.31 only.
  if (unshare(new_time) != 0 && unshare(CLONE_NEWUSER | new_time) != 0) return false;
  std::FILE* const file = std::fopen("/proc/self/timens_offsets", "w");
  if (file == nullptr) return false;
  const bool wrote = std::fprintf(file, "boottime %d 0\n", ahead_s) > 0;
  return std::fclose(file) == 0 && wrote;
}

// Forks, and returns what `check` returns in the child: 0 if all is well.
template <class Check>
int in_child(Check&& check) {
  const pid_t child = fork();
  if (child == 0) {
    try {
      _exit(check());
    } catch (...) {  // Of the test's own; the parent reports it.
      _exit(99);
    }
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 98;
}

// On the host, a day ahead of it, and ten seconds behind it, the host's uptime is the same.
TEST(HostBoot, IsTheSameFromRealNamespaces) {
  const auto uptime_of_host = [] { return system_clock()->uptime() - host_boot().clock_ahead; };
  const Uptime before = uptime_of_host();
  const auto is_later = [&] { return uptime_of_host() >= before && uptime_of_host() < before + seconds(60); };
  for (const int ahead_s : {86400, -10}) {
    EXPECT_EQ(in_child([&] {
                const nanoseconds own = host_boot().clock_ahead;
                if (!unshare_time(ahead_s)) return 1;
                if (host_boot().clock_ahead != own || !is_later()) return 2;  // Its children's is another.
                return in_child([&] {
                  if (host_boot().clock_ahead != seconds(ahead_s)) return 3;
                  if (!is_later()) return 4;
                  if (!unshare_time(0)) return 5;
                  try {
                    static_cast<void>(host_boot());  // Its own can no longer be read.
                    return 6;
                  } catch (const Exception& error) {
                    return error.kind() == ErrorKind::misuse ? 0 : 7;
                  }
                });
              }),
              0)
        << ahead_s << " s ahead; 1 and 5: this test may not make time namespaces (containers: --cap-add SYS_ADMIN)";
  }
}

}  // namespace
}  // namespace once::host_boot_test
