// The SQLite store on a disk that fails syncs and loses its power (shadow_disk.hpp): acknowledged writes stay, and so
// does everything that an answer or a read has returned.
#include <once/stores/sqlite.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <new>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <once/error.hpp>
#include <once/platform/blocking.hpp>
#include <once/testing/manual_time.hpp>
#include <once/testing/records.hpp>

#include "shadow_disk.hpp"
#include "sound.hpp"

namespace once::testing {
namespace disk_test {

using stores::make_sqlite_store;

// What is known of one key, by the numbers of its writes, in the order in which they were begun. 0: no record.
struct Key {
  std::uint64_t told = 0;                    // Acknowledged or read last: what is read later is no older.
  std::array<std::uint64_t, 64> in_doubt{};  // Writes over it of which nothing is known. Each may show, once.
  std::size_t doubts = 0;
};

// What each process was told, in memory that outlives the processes.
class Told {
 public:
  static constexpr std::size_t how_many = 24;

  Told() {
    void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("mmap");
    shared_ = ::new (memory) Shared;
  }
  ~Told() { munmap(shared_, sizeof(Shared)); }
  Told(const Told&) = delete;
  Told& operator=(const Told&) = delete;

  std::uint64_t begin(std::size_t key) {
    Key& of = shared_->keys.at(key);
    const std::uint64_t number = ++shared_->last;
    if (of.doubts == of.in_doubt.size()) --of.doubts;  // Far more than any round has.
    of.in_doubt.at(of.doubts++) = number;
    return number;
  }
  void acknowledged(std::size_t key, std::uint64_t number) {
    Key& of = shared_->keys.at(key);
    of.told = number;
    of.doubts = 0;
    ++shared_->acknowledged;
  }
  void not_written(std::size_t key, std::uint64_t number) {
    Key& of = shared_->keys.at(key);
    auto* const end = of.in_doubt.begin() + of.doubts;
    of.doubts = static_cast<std::size_t>(std::remove(of.in_doubt.begin(), end, number) - of.in_doubt.begin());
  }
  void read(std::size_t key, std::uint64_t number, const char* when) {
    Key& of = shared_->keys.at(key);
    if (of.told == number) return;
    auto* const end = of.in_doubt.begin() + of.doubts;
    if (std::find(of.in_doubt.begin(), end, number) == end) {
      const std::size_t at = shared_->wrong++;
      if (at == 0) {
        std::snprintf(shared_->first_wrong.data(), shared_->first_wrong.size(),
                      "%s: key %zu is at write %llu, but somebody was told of write %llu", when, key,
                      static_cast<unsigned long long>(number), static_cast<unsigned long long>(of.told));
      }
    }
    of.told = number;
    of.doubts = 0;
  }
  void wrong(const std::string& what) {
    if (shared_->wrong++ == 0) {
      std::snprintf(shared_->first_wrong.data(), shared_->first_wrong.size(), "%s", what.c_str());
    }
  }
  void doubted() { ++shared_->doubted; }

  [[nodiscard]] std::size_t acknowledged() const { return shared_->acknowledged; }
  [[nodiscard]] std::size_t doubts() const { return shared_->doubted; }
  [[nodiscard]] std::size_t wrongs() const { return shared_->wrong; }
  [[nodiscard]] std::string first_wrong() const { return shared_->first_wrong.data(); }

 private:
  struct Shared {
    std::array<Key, how_many> keys;
    std::uint64_t last = 0;
    std::size_t acknowledged = 0;
    std::size_t doubted = 0;
    std::size_t wrong = 0;
    std::array<char, 300> first_wrong{};
  };
  Shared* shared_ = nullptr;
};

std::string name_of(std::size_t key) { return "k#" + std::to_string(key); }

Record record_of(std::size_t key, std::uint64_t number, std::size_t bytes) {
  Record record = plain_record(name_of(key));
  record.revision = revision_of(number);
  record.result = Result::inlined(std::string(bytes, 'x'));
  return record;
}

std::uint64_t number_of(const RecordPtr& record) { return record == nullptr ? 0 : revision_count(record->revision); }

// One client of a store, which does as the engine does: reads, writes over what it has read, and reads again what is
// in doubt.
class Client {
 public:
  Client(ShadowDisk& disk, Told& told, Store& store) : disk_(disk), told_(told), store_(store) {}

  // Writes these keys at once. Whether all were acknowledged.
  bool write(std::vector<std::size_t> keys) {
    struct Write {
      std::size_t key = 0;
      std::uint64_t number = 0;
      Answer answer;
    };
    std::vector<Write> writes;
    for (const std::size_t key : keys) {
      Answer seen = blocking::get(store_, name_of(key));
      if (seen.status == AnswerStatus::failed) continue;
      told_.read(key, number_of(seen.record), "a read");
      writes.push_back({.key = key, .number = told_.begin(key), .answer = std::move(seen)});
    }
    std::atomic<std::size_t> left{writes.size()};
    for (Write& write : writes) {
      const RecordPtr seen = std::move(write.answer.record);
      const std::uint64_t place = write.answer.place;
      auto done = [&left, &write](Answer answer) {
        write.answer = std::move(answer);
        if (--left == 0) left.notify_one();
      };
      RecordPtr next = share(record_of(write.key, write.number, disk_.below(6000)));
      if (seen == nullptr) {
        store_.insert(std::move(next), std::move(done));
      } else {
        store_.replace(std::move(next), seen_of(*seen, place), std::move(done));
      }
    }
    for (std::size_t now = left; now != 0; now = left) left.wait(now);
    bool all = writes.size() == keys.size();
    for (const Write& write : writes) all = take(write.key, write.number, write.answer) && all;
    return all;
  }

 private:
  bool take(std::size_t key, std::uint64_t number, const Answer& answer) {
    if (answer.status == AnswerStatus::done) {
      told_.acknowledged(key, number);
      return true;
    }
    if (answer.status == AnswerStatus::refused) {
      told_.not_written(key, number);
      told_.read(key, number_of(answer.record), "a refusal");
    } else if (answer.error.kind == ErrorKind::in_doubt) {
      told_.doubted();
      if (disk_.below(2) == 0) return false;
      const Answer read = blocking::get(store_, name_of(key));
      if (read.status == AnswerStatus::done) told_.read(key, number_of(read.record), "the read after a doubt");
    } else {
      told_.not_written(key, number);
      if (answer.error.kind != ErrorKind::unavailable) told_.wrong(answer.error.message);
    }
    return false;
  }

  ShadowDisk& disk_;
  Told& told_;
  Store& store_;
};

class SqliteDisk : public ::testing::Test {
 protected:
  std::unique_ptr<Store> open(std::uint32_t checkpoint_pages = 100) {
    return make_sqlite_store({.path = disk_.file(),
                              .checkpoint_pages = checkpoint_pages,
                              .recent_keys = 8,
                              .boot_id = "boot " + std::to_string(boots_)});
  }

  // Everything as it was told, on a disk without faults.
  void look(const char* when) {
    disk_.heal();
    const int status = disk_.in_a_process([&] {
      const auto store = open();
      for (std::size_t key = 0; key < Told::how_many; ++key) {
        const Answer answer = blocking::get(*store, name_of(key));
        if (answer.status == AnswerStatus::failed) {
          told_.wrong(std::string(when) + ": " + answer.error.message);
        } else {
          told_.read(key, number_of(answer.record), when);
        }
      }
      for (const std::string& problem : stores::check_sqlite(*store)) told_.wrong(std::string(when) + ": " + problem);
    });
    if (status != 0) told_.wrong(std::string(when) + ": cannot be opened");
  }

  void cut_power() {
    disk_.cut_power();
    ++boots_;
  }

  void TearDown() override {
    disk_.heal();
    if (!std::filesystem::exists(disk_.file())) return;
    const int status = disk_.in_a_process([&] {
      expect_sound(disk_.file());
      if (HasFailure()) throw std::runtime_error("not sound, see above");
    });
    EXPECT_EQ(status, 0);
  }

  ShadowDisk disk_;
  Told told_;
  int boots_ = 0;
};

// --- One fault each ---

class SqliteDiskFault : public SqliteDisk {
 protected:
  // Writes without a read before it, by which a connection that outlives the writer's would be there.
  ErrorKind fail(Store& store, std::size_t key) {
    const std::uint64_t number = told_.begin(key);
    const Answer answer = blocking::insert(store, record_of(key, number, 100));
    EXPECT_EQ(answer.status, AnswerStatus::failed);
    if (answer.error.kind != ErrorKind::in_doubt) told_.not_written(key, number);
    return answer.error.kind;
  }
  void put(Store& store, std::size_t key) {
    const std::uint64_t number = told_.begin(key);
    const Answer answer = blocking::insert(store, record_of(key, number, 100));
    EXPECT_EQ(answer.status, AnswerStatus::done) << answer.error.message;
    if (answer.status == AnswerStatus::done) told_.acknowledged(key, number);
  }
  bool is_there(Store& store, std::size_t key) {
    const Answer answer = blocking::get(store, name_of(key));
    EXPECT_EQ(answer.status, AnswerStatus::done) << answer.error.message;
    told_.read(key, number_of(answer.record), "a read");
    return answer.record != nullptr;
  }
  // In another process, which must end by itself.
  void process(const std::function<void(Store&)>& work) {
    const int status = disk_.in_a_process([&] {
      auto store = open();
      work(*store);
      store.reset();
      if (::testing::Test::HasFailure()) throw std::runtime_error("a process failed, see above");
    });
    EXPECT_EQ(status, 0);
  }
  void expect_all_told_is_there() {
    cut_power();
    look("after the power cut");
    EXPECT_EQ(told_.wrongs(), 0U) << told_.first_wrong();
  }
};

TEST_F(SqliteDiskFault, ASyncThatFailedIsNeitherReadAsWrittenNorBuiltUpon) {
  process([&](Store& store) {
    put(store, 0);
    disk_.script(Synced::log, Fate::fails);
    EXPECT_EQ(fail(store, 1), ErrorKind::in_doubt);
    put(store, 2);
    EXPECT_FALSE(is_there(store, 1)) << "the engine takes this for the outcome";
    put(store, 1);
  });
  expect_all_told_is_there();
}

TEST_F(SqliteDiskFault, ASyncThatFailsAgainAndAgainLosesNothingBeforeOrAfter) {
  process([&](Store& store) {
    put(store, 0);
    disk_.script(Synced::anything, Fate::fails, 0, 1000);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(fail(store, 1), ErrorKind::in_doubt);
    disk_.heal();
    put(store, 2);
  });
  expect_all_told_is_there();
}

TEST_F(SqliteDiskFault, TheNextProcessWritesAgainWhatItReads) {
  process([&](Store& store) {
    put(store, 0);
    disk_.script(Synced::log, Fate::fails);
    EXPECT_EQ(fail(store, 1), ErrorKind::in_doubt);
  });
  process([&](Store& store) {
    is_there(store, 1);
    put(store, 2);
  });
  expect_all_told_is_there();
}

TEST_F(SqliteDiskFault, AnAnswerThatWritesNothingDoesNotMakeTheLogTrue) {
  process([&](Store& store) {
    put(store, 0);
    disk_.script(Synced::log, Fate::fails);
    EXPECT_EQ(fail(store, 1), ErrorKind::in_doubt);
    EXPECT_EQ(blocking::insert(store, record_of(0, 1, 0)).status, AnswerStatus::refused);
  });
  process([&](Store& store) {
    is_there(store, 1);
    put(store, 2);
  });
  expect_all_told_is_there();
}

TEST_F(SqliteDiskFault, WhatAKilledProcessHasWrittenButNotSyncedIsSyncedBeforeItIsTold) {
  const int status = disk_.in_a_process([&] {
    const auto store = open();
    put(*store, 0);
    disk_.script(Synced::log, Fate::dies);
    fail(*store, 1);
  });
  EXPECT_EQ(status, 128 + SIGKILL);
  process([&](Store& store) { EXPECT_TRUE(is_there(store, 1)); });
  expect_all_told_is_there();
}

TEST_F(SqliteDiskFault, AProcessThatIsKilledBeforeItHearsOfTheFailureIsNoDifferent) {
  const int status = disk_.in_a_process([&] {
    const auto store = open();
    put(*store, 0);
    disk_.script(Synced::log, Fate::fails_and_dies);
    fail(*store, 1);
  });
  EXPECT_EQ(status, 128 + SIGKILL);
  process([&](Store& store) {
    is_there(store, 1);
    put(store, 2);
  });
  expect_all_told_is_there();
}

TEST_F(SqliteDiskFault, AStoreDoesNotOpenOnALogThatCannotBeWrittenAgain) {
  process([&](Store& store) {
    put(store, 0);
    disk_.script(Synced::log, Fate::fails);
    EXPECT_EQ(fail(store, 1), ErrorKind::in_doubt);
  });
  disk_.in_a_process([&] {
    disk_.script(Synced::log, Fate::fails);
    try {
      const auto store = open();
      told_.wrong("opened");
    } catch (const Exception& error) {
      if (error.kind() != ErrorKind::unavailable) told_.wrong(error.what());
    }
  });
  process([&](Store& store) {
    is_there(store, 1);
    put(store, 2);
  });
  expect_all_told_is_there();
}

TEST_F(SqliteDiskFault, ALockFileThatIsGoneHasNothingToSayOfTheLog) {
  process([&](Store& store) {
    put(store, 0);
    disk_.script(Synced::log, Fate::fails);
    EXPECT_EQ(fail(store, 1), ErrorKind::in_doubt);
  });
  std::filesystem::remove(disk_.file("once.db-lock"));
  process([&](Store& store) {
    is_there(store, 1);
    put(store, 2);
  });
  expect_all_told_is_there();
}

// As a sqlite3 shell does that is told not to sync: what it has written is told by us, so it is synced by us.
class SqliteDiskForeign : public SqliteDiskFault, public ::testing::WithParamInterface<std::uint64_t> {
 protected:
  void foreign_deletion_is_not_taken_back(const std::string& before) {
    disk_.seed(GetParam());
    process([&](Store& store) {
      put(store, 0);
      put(store, 1);
    });
    disk_.in_a_process([&] {
      Shell(disk_.file()).run(before + "; PRAGMA synchronous = NORMAL; DELETE FROM records WHERE key = 'k#1'");
    });
    const auto is_gone = [](Store& store) { EXPECT_FALSE(blocking::get(store, name_of(1)).record); };
    process(is_gone);
    cut_power();
    process(is_gone);
  }
};
TEST_P(SqliteDiskForeign, ALogThatSomebodyElseBeganAnewIsNotTakenForSynced) {
  foreign_deletion_is_not_taken_back("PRAGMA wal_checkpoint(TRUNCATE)");
}
TEST_P(SqliteDiskForeign, ALogThatSomebodyElseWentOnWithIsNotTakenForSynced) {
  foreign_deletion_is_not_taken_back("SELECT 1");
}
INSTANTIATE_TEST_SUITE_P(Seeds, SqliteDiskForeign, ::testing::Range(std::uint64_t{1}, std::uint64_t{9}));

// 1. A sync fails, and what it was to write stays in memory. 2. The next process makes the log's index of that. 3. The
// kernel takes the memory for something else: whatever is read from then on is what the disk has.
class SqliteDiskEviction : public SqliteDiskFault, public ::testing::WithParamInterface<std::uint64_t> {};
TEST_P(SqliteDiskEviction, WhatTheIndexSaysOfTheLogIsWhatIsWrittenAgain) {
  process([&](Store& store) {
    put(store, 0);
    disk_.script(Synced::log, Fate::fails);
    EXPECT_EQ(fail(store, 1), ErrorKind::in_doubt);
  });
  disk_.evict_before_read(GetParam());
  const int status = disk_.in_a_process([&] {
    std::unique_ptr<Store> store;
    try {
      store = open();
    } catch (const Exception& error) {
      if (error.kind() != ErrorKind::unavailable) told_.wrong(error.what());
      return;
    }
    EXPECT_TRUE(is_there(*store, 0));
    is_there(*store, 1);
    put(*store, 2);
    store.reset();
    if (::testing::Test::HasFailure()) throw std::runtime_error("see above");
  });
  EXPECT_EQ(status, 0);
  expect_all_told_is_there();
}
INSTANTIATE_TEST_SUITE_P(BeforeRead, SqliteDiskEviction, ::testing::Range(std::uint64_t{1}, std::uint64_t{80}));

TEST_F(SqliteDiskFault, AnotherProcessAtTheFileGoesOnWithoutWhatFailed) {
  process([&](Store& one) {
    const auto other = open();
    put(one, 0);
    put(*other, 1);
    disk_.script(Synced::log, Fate::fails);
    EXPECT_EQ(fail(one, 2), ErrorKind::in_doubt);
    EXPECT_FALSE(is_there(*other, 2));
    put(*other, 3);
    EXPECT_FALSE(is_there(one, 2));
    put(one, 4);
  });
  expect_all_told_is_there();
}

// The file's own sync, in copies of the log and on close: the log is used anew only when the file has it.
TEST_F(SqliteDiskFault, ACopyOfTheLogThatWasNotSyncedIsMadeAgain) {
  process([&](Store& store) {
    disk_.script(Synced::file, Fate::fails, 0, 2);
    for (int i = 0; i < 60; ++i) Client(disk_, told_, store).write({0, 1, 2, 3, 4, 5});
    disk_.script(Synced::file, Fate::fails, 0, 1000);
    for (int i = 0; i < 60; ++i) Client(disk_, told_, store).write({6, 7, 8, 9, 10, 11});
    EXPECT_GT(stores::sqlite_status(store).value().log_bytes, 1'000'000U);
  });
  EXPECT_GT(told_.acknowledged(), 700U);
  expect_all_told_is_there();
}

// The header's sync, when the log is used anew, is one of these.
TEST_F(SqliteDiskFault, AnySyncOfALogThatIsUsedAnewMayFail) {
  for (std::uint64_t skip = 0; skip < 16; ++skip) {
    process([&](Store& store) {
      disk_.script(Synced::log, Fate::fails, skip);
      for (int i = 0; i < 20; ++i) Client(disk_, told_, store).write({0, 1, 2, 3, 4});
    });
  }
  expect_all_told_is_there();
}

// The database has all of a log that is cut off on close. Then the sync of the log's new length fails, and the power.
class SqliteDiskCutLog : public SqliteDiskFault, public ::testing::WithParamInterface<std::uint64_t> {};
TEST_P(SqliteDiskCutLog, ALogThatWasCutOffLosesNothing) {
  disk_.seed(GetParam());
  const int status = disk_.in_a_process([&] {
    const auto store = open(10'000);
    for (std::size_t i = 0; i < 80; ++i) Client(disk_, told_, *store).write({i % 6});
  });
  ASSERT_EQ(status, 0);
  ASSERT_EQ(std::filesystem::file_size(disk_.file("once.db-wal")), 0U);
  disk_.chance(Fate::fails, 1000);
  disk_.in_a_process([&] { EXPECT_THROW(open(), Exception); });
  expect_all_told_is_there();
}
INSTANTIATE_TEST_SUITE_P(Seeds, SqliteDiskCutLog, ::testing::Range(std::uint64_t{1}, std::uint64_t{21}));

TEST_F(SqliteDiskFault, NothingIsWrittenUnderANameThatTheDiskMayNotHave) {
  disk_.in_a_process([&] {
    disk_.script(Synced::directory, Fate::fails, 0, 1000);
    try {
      const auto store = open();
      told_.wrong("opened");
    } catch (const Exception& error) {
      const std::string text = error.what();
      if (error.kind() != ErrorKind::unavailable || text.find("cannot sync the directory") == std::string::npos) {
        told_.wrong(text);
      }
    }
  });
  disk_.heal();
  process([&](Store& store) {
    EXPECT_TRUE(disk_.has_name("once.db"));
    EXPECT_TRUE(disk_.has_name("once.db-wal"));
    put(store, 0);
  });
  expect_all_told_is_there();
}

TEST_F(SqliteDiskFault, NewDirectoriesAreOnTheDiskWithTheFile) {
  const int status = disk_.in_a_process([&] {
    make_sqlite_store({.path = disk_.file("a/b/c/once.db"), .create_directories = true});
    for (const char* directory : {"", "/a", "/a/b", "/a/b/c"}) {
      const std::string path = std::filesystem::path(disk_.file("x")).parent_path().string() + directory;
      if (!disk_.was_synced(path)) told_.wrong(path + " was not synced");
    }
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(told_.wrongs(), 0U) << told_.first_wrong();
}

// Whoever may write there and not look cannot sync it. root may look anywhere: so as somebody else.
TEST_F(SqliteDiskFault, ADirectoryThatMayNotBeReadIsSyncedWithItsFileSystem) {
  const std::string directory = std::filesystem::path(disk_.file()).parent_path();
  constexpr uid_t nobody = 65534;
  if (geteuid() == 0) {
    ASSERT_EQ(chown(directory.c_str(), nobody, nobody), 0);
  }
  ASSERT_EQ(chmod(directory.c_str(), 0300), 0);
  const auto as_nobody = [&](const std::function<void()>& work) {
    return disk_.in_a_process([&] {
      if (geteuid() == 0 && (setgid(nobody) != 0 || setuid(nobody) != 0 || prctl(PR_SET_DUMPABLE, 1) != 0)) {
        throw std::runtime_error("setuid");
      }
      if (::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC) >= 0) throw std::runtime_error("may be read");
      work();
    });
  };
  disk_.script(Synced::directory, Fate::fails);
  EXPECT_EQ(as_nobody([&] {
              try {
                const auto store = open();
                told_.wrong("opened");
              } catch (const Exception& error) {
                const std::string text = error.what();
                if (text.find("cannot sync the directory") == std::string::npos ||
                    text.find("Input/output error") == std::string::npos)
                  told_.wrong(text);
              }
            }),
            0);
  EXPECT_EQ(as_nobody([&] { put(*open(), 0); }), 0);
  EXPECT_EQ(as_nobody([&] {
              const auto store = make_sqlite_store({.path = disk_.file("a/b/once.db"), .create_directories = true});
              if (blocking::insert(*store, plain_record("k#1")).status != AnswerStatus::done) told_.wrong("a/b");
            }),
            0);
  ASSERT_EQ(chmod(directory.c_str(), 0700), 0);
  EXPECT_EQ(told_.wrongs(), 0U) << told_.first_wrong();
  EXPECT_EQ(told_.acknowledged(), 1U);
}

// SQLite takes EIO for damage.
TEST_F(SqliteDiskFault, AReadThatFailsIsNoDamageAndWorksLater) {
  process([&](Store& store) {
    for (int i = 0; i < 60; ++i) Client(disk_, told_, store).write({0, 1, 2, 3});
    disk_.fail_reads(true);
    Answer answer = blocking::get(store, "nobody's#1");
    EXPECT_EQ(answer.status, AnswerStatus::failed);
    EXPECT_EQ(answer.error.kind, ErrorKind::unavailable) << answer.error.message;
    EXPECT_NE(answer.error.message.find("input or output failed"), std::string::npos) << answer.error.message;
    try {
      const auto second = open();
      ADD_FAILURE() << "opened";
    } catch (const Exception& error) {
      EXPECT_EQ(error.kind(), ErrorKind::unavailable) << error.what();
    }
    disk_.fail_reads(false);
    EXPECT_TRUE(is_there(store, 0));
    put(store, 4);
  });
}

// The power is cut at each sync of a file that is being made.
class SqliteDiskCreation : public SqliteDiskFault, public ::testing::WithParamInterface<std::uint64_t> {};
TEST_P(SqliteDiskCreation, AFileThatWasNotMadeWholeIsMadeByTheNext) {
  disk_.seed(GetParam());
  disk_.script(Synced::anything, Fate::cut, GetParam());
  const int status = disk_.in_a_process([&] {
    const auto store = open();
    for (std::size_t key = 0; key < 20; ++key) put(*store, key);
  });
  EXPECT_EQ(status, cut_status);
  disk_.heal();
  cut_power();
  process([&](Store& store) { Client(disk_, told_, store).write({20}); });
  expect_all_told_is_there();
}
INSTANTIATE_TEST_SUITE_P(AtSync, SqliteDiskCreation, ::testing::Range(std::uint64_t{0}, std::uint64_t{16}));

// --- All of them together ---

// One world: processes come and go at one file, syncs fail, processes are killed, the power is cut. Each time all that
// was told is looked for.
class SqliteDiskWorld : public SqliteDisk, public ::testing::WithParamInterface<std::uint64_t> {
 protected:
  void play(std::uint64_t seed) {
    disk_.seed(seed);
    disk_.shows_the_platter_after_a_failure(disk_.below(3) == 0);
    disk_.in_a_process([&] { open(); });
    const std::uint64_t sessions = 2 + disk_.below(5);
    for (std::uint64_t session = 0; session < sessions; ++session) {
      static constexpr std::array<std::uint32_t, 4> fails{0, 20, 200, 600};
      disk_.chance(Fate::fails, fails.at(disk_.below(fails.size())));
      disk_.chance(Fate::fails_and_dies, disk_.below(3) == 0 ? 20 : 0);
      disk_.chance(Fate::dies, disk_.below(3) == 0 ? 20 : 0);
      disk_.chance(Fate::cut, disk_.below(3) == 0 ? 20 : 0);
      const int status = disk_.in_a_process([&] { work(); });
      if (status != 0 && status != cut_status && status != 128 + SIGKILL) {
        told_.wrong("a process ended with " + std::to_string(status));
      }
      if (status == cut_status) cut_power();
      if (disk_.below(2) == 0) {
        look("the next process");
        if (disk_.below(2) == 0) cut_power();
        look("after a power cut");
      }
    }
    cut_power();
    look("at the end");
  }

  void work() {
    std::array<std::unique_ptr<Store>, 2> stores;
    for (std::size_t i = 0; i < 1 + disk_.below(2); ++i) {
      try {
        stores.at(i) = open();
      } catch (const Exception& error) {
        if (error.kind() != ErrorKind::unavailable) told_.wrong(error.what());
      }
    }
    const std::uint64_t writes = disk_.below(80);
    for (std::uint64_t i = 0; i < writes; ++i) {
      const auto& store = stores.at(disk_.below(2));
      if (!store) continue;
      std::vector<std::size_t> keys;
      const std::uint64_t together = 1 + disk_.below(5);
      const std::size_t first = disk_.below(Told::how_many);
      for (std::size_t key = 0; key < together; ++key) keys.push_back((first + key) % Told::how_many);
      Client(disk_, told_, *store).write(std::move(keys));
    }
  }
};

TEST_P(SqliteDiskWorld, NothingThatWasToldIsLost) {
  std::printf("seed %llu\n", static_cast<unsigned long long>(GetParam()));
  play(GetParam());
  EXPECT_EQ(told_.wrongs(), 0U) << "seed " << GetParam() << ", of " << told_.acknowledged()
                                << " acknowledged: " << told_.first_wrong();
}

// The same ones each time, and as many that nobody has tried.
std::vector<std::uint64_t> seeds() {
  std::vector<std::uint64_t> seeds;
  std::random_device fresh;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    seeds.push_back(seed);
    seeds.push_back(fresh());
  }
  return seeds;
}
INSTANTIATE_TEST_SUITE_P(Seeds, SqliteDiskWorld, ::testing::ValuesIn(seeds()));

}  // namespace disk_test
}  // namespace once::testing
