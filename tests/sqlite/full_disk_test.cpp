// A real disk that is full: a small one of this test's own. Whatever was claimed can be ended, so nothing runs twice.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <once/engine/engine.hpp>
#include <once/platform/blocking.hpp>
#include <once/seal.hpp>
#include <once/stores/sqlite.hpp>
#include <once/testing/manual_time.hpp>
#include <once/testing/records.hpp>

#include "scratch.hpp"
#include "sound.hpp"

namespace once::testing {
namespace full_disk_test {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr std::int64_t kib = 1024;

// Its mounts are this process's own, and gone with it.
class FullDisk : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    may_mount_ = unshare(CLONE_NEWNS) == 0 && mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
  }
  void SetUp() override {
    if (!may_mount_) GTEST_SKIP() << "this process may not mount a file system: run it as root";
  }
  void TearDown() override {
    if (path_.empty()) return;
    engine_.reset();
    store_.reset();
    std::filesystem::remove(scratch_.file("filler"));
    expect_sound(path_);
    ASSERT_EQ(umount2(scratch_.path().c_str(), MNT_DETACH), 0);
  }

  void make_disk(std::int64_t bytes, std::uint32_t checkpoint_pages = 4000) {
    const std::string size = "size=" + std::to_string(bytes);
    ASSERT_EQ(mount("once-test", scratch_.path().c_str(), "tmpfs", 0, size.c_str()), 0);
    path_ = scratch_.file();
    open(checkpoint_pages);
  }
  void open(std::uint32_t checkpoint_pages = 4000, const SealKeys& keys = {}) {
    auto store = stores::make_sqlite_store({.path = path_, .checkpoint_pages = checkpoint_pages, .clock = clock_});
    if (!keys.empty()) store = seal(std::move(store), keys);
    store_ = std::move(store);
    engine_.emplace(
        EngineOptions{.store = store_,
                      .policy = {.lease = 10min, .on_conflict = OnConflict::fail, .max_inline_bytes = 1'000'000},
                      .observer = [](const Event&) {},
                      .clock = clock_});
  }
  void close() {
    engine_.reset();
    store_.reset();
  }
  // What is reserved in the file.
  [[nodiscard]] std::int64_t reserved() const {
    Shell shell(path_);
    return static_cast<std::int64_t>(std::filesystem::file_size(path_)) -
           4096 * std::stoll(shell.run("PRAGMA page_count"));
  }
  // Leaves so much room. The store's file gets none of it back by itself.
  void fill(std::int64_t leave = 0) const {
    const int fd = ::open(scratch_.file("filler").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    ASSERT_GE(fd, 0);
    const auto room = static_cast<std::int64_t>(std::filesystem::space(scratch_.path()).available);
    const std::string bytes(static_cast<std::size_t>(std::max(room - leave, std::int64_t{0})), 'x');
    std::size_t at = 0;
    for (ssize_t wrote = 1; at < bytes.size() && wrote > 0; at += static_cast<std::size_t>(wrote)) {
      wrote = write(fd, bytes.data() + at, bytes.size() - at);
      if (wrote < 0) break;
    }
    ::close(fd);
  }

  // Claims them one after another, until one is refused. All that were not refused are claims.
  std::vector<Claim> claim(int most) {
    std::vector<Claim> claims;
    while (static_cast<int>(claims.size()) < most) {
      Begin begun = engine_->begin("k" + std::to_string(next_));
      if (begun.kind != Begin::Kind::claimed) {
        EXPECT_EQ(begun.kind, Begin::Kind::error);
        EXPECT_THAT(begun.error.message, HasSubstr("no space left"));
        break;
      }
      ++next_;
      claims.push_back(std::move(begun.claim));
    }
    return claims;
  }
  // Does not become shorter when it is compressed.
  static std::string noise(std::size_t bytes) {
    std::string made(bytes, ' ');
    static std::minstd_rand random;
    for (char& c : made) c = static_cast<char>(random());
    return made;
  }
  // All at once.
  static std::vector<Finish> complete(std::vector<Claim>& claims, std::size_t bytes) {
    std::vector<Finish> finishes(claims.size());
    std::mutex mutex;
    std::condition_variable one_more;
    std::size_t done = 0;
    for (std::size_t i = 0; i < claims.size(); ++i) {
      claims[i].complete(Result::inlined(noise(bytes)), [&, i](Finish finish) {
        const std::lock_guard lock(mutex);
        finishes[i] = std::move(finish);
        ++done;
        one_more.notify_all();
      });
    }
    std::unique_lock lock(mutex);
    one_more.wait(lock, [&] { return done == claims.size(); });
    return finishes;
  }
  // The outcome is kept: nobody runs it again. Returns how many results are kept too.
  std::size_t expect_kept(std::vector<Claim>& claims, std::size_t bytes) {
    std::size_t whole = 0;
    const std::vector<Finish> finishes = complete(claims, bytes);
    for (std::size_t i = 0; i < claims.size(); ++i) {
      EXPECT_EQ(finishes[i].kind, Finish::Kind::recorded) << claims[i].key() << ": " << finishes[i].error.message;
      const Answer stored = blocking::get(*store_, claims[i].key());
      if (stored.record == nullptr) {
        ADD_FAILURE() << stored.error.message;
        continue;
      }
      EXPECT_EQ(stored.record->state, State::completed) << claims[i].key();
      const Result& result = stored.record->result;
      EXPECT_EQ(result.placement == Placement::dropped ? result.size : result.bytes.size(), bytes);
      if (result.placement != Placement::dropped) ++whole;
    }
    return whole;
  }

  const Scratch scratch_;
  std::string path_;
  std::shared_ptr<Clock> clock_ = system_clock();
  std::shared_ptr<Store> store_;
  std::optional<Engine> engine_;
  int next_ = 0;
  static inline bool may_mount_ = false;
};

// Whatever room is left when the claim comes.
TEST_F(FullDisk, ALargeResultGivesWayToItsOutcome) {
  make_disk(4096 * kib);
  std::vector<Claim> first = claim(1);
  EXPECT_EQ(expect_kept(first, 10), 1U);
  std::size_t claimed = 0;
  for (std::int64_t room = 600 * kib; room >= 0; room -= 20 * kib) {
    std::filesystem::remove(scratch_.file("filler"));
    fill(room);
    std::vector<Claim> claims = claim(1);
    fill();
    claimed += claims.size();
    expect_kept(claims, 700'000);
  }
  EXPECT_GT(claimed, 10U);
}

// Many claims wait for their work when another program fills the disk.
TEST_F(FullDisk, EachOfManyClaimsIsEnded) {
  make_disk(8192 * kib);
  std::vector<Claim> claims = claim(500);
  ASSERT_EQ(claims.size(), 500U);
  fill();
  expect_kept(claims, 4'000);
  std::vector<Claim> last = claim(1);  // The log's own room may serve it.
  expect_kept(last, 4'000);
  std::filesystem::remove(scratch_.file("filler"));
  std::vector<Claim> more = claim(1);
  EXPECT_EQ(expect_kept(more, 200'000), 1U);
}

TEST_F(FullDisk, EachOfManyClaimsOfOneGroupIsEnded) {
  make_disk(8192 * kib);
  std::vector<std::optional<Begin>> begun(500);
  std::atomic<std::size_t> told{0};
  for (std::size_t i = 0; i < begun.size(); ++i) {
    engine_->begin(engine_->request("g" + std::to_string(i), {}), [&, i](Begin&& begin) {
      begun[i].emplace(std::move(begin));
      if (++told == begun.size()) told.notify_all();
    });
  }
  for (std::size_t now = told; now < begun.size(); now = told) told.wait(now);
  std::vector<Claim> claims;
  for (std::optional<Begin>& one : begun) {
    if (one->kind == Begin::Kind::claimed) claims.push_back(std::move(one->claim));
  }
  ASSERT_EQ(claims.size(), begun.size());
  fill();
  expect_kept(claims, 4'000);
}

// SQLite's index of the log grows by 32 KiB after 4,062 frames, and then after each 4,096.
TEST_F(FullDisk, ALogWhoseIndexCannotGrowEndsItsClaims) {
  for (const std::size_t frames : {3'900U, 4'040U, 4'061U, 4'062U}) {
    make_disk(40'000 * kib, 1'000'000);
    Shell shell(path_);
    shell.run("PRAGMA wal_autocheckpoint = 0; CREATE TABLE filler (id INTEGER PRIMARY KEY, x)");
    std::vector<Claim> one = claim(1);
    EXPECT_EQ(expect_kept(one, 10), 1U);
    const auto frames_now = [&] { return (std::filesystem::file_size(path_ + "-wal") - 32) / 4120; };
    while (frames_now() + 2 < frames) shell.run("INSERT OR REPLACE INTO filler VALUES (1, zeroblob(100))");
    fill(400 * kib);
    std::vector<Claim> claims = claim(3);
    fill();
    expect_kept(claims, 200'000);
    TearDown();
    path_.clear();
  }
}

// A copy of the log into the file cuts off what was reserved.
TEST_F(FullDisk, ACopyOfTheLogKeepsTheRoomOfClaims) {
  make_disk(8192 * kib);
  std::vector<Claim> claims = claim(500);
  ASSERT_EQ(claims.size(), 500U);
  const auto problem = stores::cut_sqlite_log(*store_);
  ASSERT_FALSE(problem) << problem->message;
  fill();
  expect_kept(claims, 4'000);
}

// Before its first commit, the log does not tell the size of its pages.
TEST_F(FullDisk, TheFirstClaimAfterACopyReservesRoom) {
  make_disk(8192 * kib);
  std::vector<Claim> first = claim(20);
  EXPECT_EQ(expect_kept(first, 100'000), 20U);
  first.clear();
  close();
  Shell(path_).run("PRAGMA wal_checkpoint(TRUNCATE)");
  open();
  std::vector<Claim> claims = claim(1);
  EXPECT_GE(reserved(), 256 * kib);
  expect_kept(claims, 10);
}

// Called once, before SQLite makes the file longer by its next byte.
std::function<void()> as_the_file_grows;  // NOLINT(cert-err58-cpp)

ssize_t watched_pwrite(int fd, const void* bytes, std::size_t count, off_t at) {
  if (count == 1 && as_the_file_grows) {
    const auto name = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd));
    if (name.extension() == ".db") std::exchange(as_the_file_grows, nullptr)();
  }
  return ::pwrite(fd, bytes, count, at);
}

// SQLite without posix_fallocate(), as Debian's, writes a zero into each block behind the end that it has seen. A shell
// that copies the log then writes there too.
TEST_F(FullDisk, WhatIsReservedOverwritesNoCopyOfTheLog) {
  make_disk(32'768 * kib);
  std::vector<Claim> claims = claim(1);
  expect_kept(claims, 10);
  Shell shell(path_);
  shell.run(
      "PRAGMA wal_autocheckpoint = 0; CREATE TABLE own (x); WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT "
      "i + 1 FROM n WHERE i < 1000) INSERT INTO own SELECT replace(hex(zeroblob(1950)), '0', 'y') FROM n");
  sqlite3_vfs* const vfs = sqlite3_vfs_find("unix");
  const std::string call = vfs->xGetSystemCall(vfs, "pwrite64") != nullptr ? "pwrite64" : "pwrite";
  vfs->xSetSystemCall(vfs, call.c_str(), reinterpret_cast<sqlite3_syscall_ptr>(watched_pwrite));
  as_the_file_grows = [&] { shell.run("PRAGMA wal_checkpoint(PASSIVE)"); };
  std::vector<Claim> more = claim(1);
  as_the_file_grows = nullptr;
  vfs->xSetSystemCall(vfs, call.c_str(), nullptr);
  expect_kept(more, 10);
  shell.run("PRAGMA wal_checkpoint(PASSIVE)");
  EXPECT_EQ(Shell(path_).run("SELECT count(*) FROM own WHERE x = replace(hex(zeroblob(1950)), '0', 'y')"), "1000");
}

// What had ended when it was copied or imported, and what lapsed, reserves nothing.
TEST_F(FullDisk, OnlyOpenClaimsReserveRoom) {
  const auto clock = std::make_shared<ManualClock>();
  clock_ = clock;
  make_disk(16'384 * kib);
  for (int i = 0; i < 300; ++i) {
    Record ended = full_record("ended" + std::to_string(i), State::completed);
    ended.result = Result::inlined(std::string(4'000, 'x'));
    ASSERT_EQ(blocking::insert(*store_, std::move(ended)).status, AnswerStatus::done);
    Record open = plain_record("open" + std::to_string(i));
    open.owner.bytes[1] = static_cast<std::uint8_t>(i);
    open.owner.bytes[2] = static_cast<std::uint8_t>(i / 256);
    open.input = std::string(2'000, 'x');
    open.lease_until = clock->now() + 1s;
    ASSERT_EQ(blocking::insert(*store_, std::move(open)).status, AnswerStatus::done);
  }
  EXPECT_GE(reserved(), 300 * 2'500);
  EXPECT_LT(reserved(), 300 * 3'500 + 384 * kib);
  clock->advance(60s);
  std::vector<Claim> claims = claim(1);
  ASSERT_FALSE(stores::cut_sqlite_log(*store_));
  expect_kept(claims, 10);
  EXPECT_LT(reserved(), 384 * kib);
}

// It has its steps in its one sealed text, and they are no result.
TEST_F(FullDisk, ASealedOutcomeIsKept) {
  make_disk(8192 * kib);
  close();
  open(4000, {{.id = "k", .bytes = {1, 2, 3}}});
  std::vector<Claim> claims = claim(2);
  ASSERT_EQ(claims.size(), 2U);
  for (Claim& one : claims) {
    EXPECT_EQ(one.add_step("paid", noise(40'000)).kind, Finish::Kind::recorded);
  }
  fill();
  EXPECT_EQ(claims[0].hold("nobody knows").kind, Finish::Kind::recorded);
  EXPECT_EQ(claims[1].fail({.code = "declined", .message = "no"}).kind, Finish::Kind::recorded);
}

}  // namespace full_disk_test
}  // namespace once::testing
