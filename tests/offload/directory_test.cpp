// The directory that keeps large results.
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <once/offload/directory.hpp>

namespace once {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class DirectoryTest : public ::testing::Test {
 protected:
  DirectoryTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "once-offload-XXXXXX").string();
    directory_ = mkdtemp(pattern.data());
  }
  ~DirectoryTest() override {
    chmod(directory_.c_str(), 0700);
    std::filesystem::remove_all(directory_);
  }
  static OffloadAnswer put(Offload& to, std::string bytes) {
    std::optional<OffloadAnswer> got;
    to.put("hint", std::move(bytes), [&got](OffloadAnswer answer) { got = std::move(answer); });
    return got.value();
  }
  static OffloadAnswer get(Offload& from, std::string location) {
    std::optional<OffloadAnswer> got;
    from.get(std::move(location), [&got](OffloadAnswer answer) { got = std::move(answer); });
    return got.value();
  }
  static OffloadAnswer remove(Offload& from, std::string location) {
    std::optional<OffloadAnswer> got;
    from.remove(std::move(location), [&got](OffloadAnswer answer) { got = std::move(answer); });
    return got.value();
  }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(directory_), {}));
  }
  std::string directory_;
};

TEST_F(DirectoryTest, KeepsBytesUnderNewNamesAndGivesThemBack) {
  const auto offload = make_directory_offload(directory_ + "/deeper");
  struct stat made {};
  ASSERT_EQ(stat((directory_ + "/deeper").c_str(), &made), 0);
  EXPECT_EQ(made.st_mode & 0777U, 0700U);
  std::string bytes(300'000, '\0');
  bytes[17] = '\xFF';
  const OffloadAnswer one = put(*offload, bytes);
  const OffloadAnswer two = put(*offload, "");
  ASSERT_EQ(one.error, std::nullopt);
  EXPECT_THAT(one.text, ::testing::StartsWith("file:"));
  EXPECT_NE(one.text, two.text);
  EXPECT_EQ(get(*offload, one.text).text, bytes);
  EXPECT_EQ(get(*offload, two.text).text, "");
  EXPECT_EQ(remove(*offload, one.text).error, std::nullopt);
  EXPECT_EQ(remove(*offload, one.text).error, std::nullopt) << "missing is not an error";
  EXPECT_EQ(get(*offload, one.text).error->kind, ErrorKind::corrupt);
}

TEST_F(DirectoryTest, NoLocationLeadsOutOfIt) {
  const auto offload = make_directory_offload(directory_);
  std::ofstream(directory_ + "/../once-secret") << "secret";
  for (const char* location : {"file:../once-secret", "file:/etc/passwd", "file:", "s3://x/y", "file:a/b", ""}) {
    const OffloadAnswer answer = get(*offload, location);
    ASSERT_TRUE(answer.error) << location;
    EXPECT_EQ(answer.error->kind, ErrorKind::misuse) << location;
    EXPECT_TRUE(remove(*offload, location).error) << location;
  }
  EXPECT_TRUE(std::filesystem::remove(directory_ + "/../once-secret"));
}

// As in a home in which root runs something first. The umask and a slash at the end change nothing.
TEST_F(DirectoryTest, ANewDirectoryBelongsToTheParentsOwner) {
  const uid_t owner = geteuid() == 0 ? 51'234 : geteuid();
  ASSERT_EQ(chown(directory_.c_str(), owner, static_cast<gid_t>(-1)), 0);
  const mode_t old = umask(0777);
  const auto offload = make_directory_offload(directory_ + "/new/");
  const OffloadAnswer kept = put(*offload, "bytes");
  umask(old);
  EXPECT_FALSE(kept.error) << kept.error->message;
  EXPECT_EQ(get(*offload, kept.text).text, "bytes");
  struct stat found {};
  ASSERT_EQ(stat((directory_ + "/new").c_str(), &found), 0);
  EXPECT_EQ(found.st_uid, owner);
  EXPECT_EQ(found.st_mode & 07777, 0700U);
  EXPECT_EQ(files(), 1U);
}

TEST_F(DirectoryTest, AnUnusableDirectoryIsSaidAtOnce) {
  std::ofstream(directory_ + "/file") << "x";
  for (const std::string& path : {directory_ + "/file", directory_ + "/none/deeper", directory_ + "/file/below"}) {
    try {
      make_directory_offload(path);
      ADD_FAILURE() << path;
    } catch (const Exception& error) {
      EXPECT_EQ(error.kind(), ErrorKind::unavailable);
      EXPECT_THAT(error.what(), HasSubstr(path));
    }
  }
}

TEST_F(DirectoryTest, AWriteThatFailsLeavesNothingBehind) {
  const auto offload = make_directory_offload(directory_ + "/gone");
  std::filesystem::remove_all(directory_ + "/gone");
  const OffloadAnswer answer = put(*offload, "bytes");
  ASSERT_TRUE(answer.error);
  EXPECT_EQ(answer.error->kind, ErrorKind::unavailable);
  EXPECT_THAT(answer.error->message, AllOf(HasSubstr("gone"), HasSubstr("No such file or directory")));
  EXPECT_EQ(files(), 0U);
}

// A limit on the size of files stands for the full disk: the write stops in the middle, too.
TEST_F(DirectoryTest, AFullDiskLeavesNothingBehindAndIsSaid) {
  const auto offload = make_directory_offload(directory_);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 4096;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const OffloadAnswer answer = put(*offload, std::string(100'000, 'x'));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  ASSERT_TRUE(answer.error);
  EXPECT_EQ(answer.error->kind, ErrorKind::unavailable);
  EXPECT_THAT(answer.error->message, HasSubstr("File too large"));
  EXPECT_EQ(files(), 0U);
  EXPECT_EQ(get(*offload, put(*offload, "there is room again").text).text, "there is room again");
}

}  // namespace
}  // namespace once
