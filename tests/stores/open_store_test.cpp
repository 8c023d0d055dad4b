#include <unistd.h>

#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <once/error.hpp>
#include <once/platform/blocking.hpp>
#include <once/stores/open.hpp>

#include "stores/open_postgresql.hpp"

namespace once {
namespace open_store_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

class OpenStore : public ::testing::Test {
 protected:
  OpenStore() {
    std::string pattern = (std::filesystem::temp_directory_path() / "once-open-XXXXXX").string();
    directory_ = mkdtemp(pattern.data());
  }
  ~OpenStore() override { std::filesystem::remove_all(directory_); }

  // The misuse that opening `url` is refused as; empty if it is not.
  static std::string refusal(const std::string& url) {
    try {
      open_store(url);
    } catch (const Exception& error) {
      EXPECT_EQ(error.kind(), ErrorKind::misuse) << error.what();
      return error.what();
    }
    return {};
  }

  std::string directory_;
};

TEST_F(OpenStore, OpensTheMemory) {
  const auto store = open_store("memory:");
  EXPECT_EQ(store->name(), "memory:");
  EXPECT_FALSE(store->capabilities().shared);
}

TEST_F(OpenStore, OpensAFileByItsPathAndFindsItAgain) {
  const std::string url = "sqlite:" + directory_ + "/a.db";
  Record record;
  record.key = "orders#17";
  record.attempt = 1;
  record.revision = next_revision(0, 0);
  EXPECT_EQ(blocking::insert(*open_store(url), record).status, AnswerStatus::done);
  const auto store = open_store(url);
  EXPECT_EQ(store->name(), url);
  EXPECT_EQ(*blocking::get(*store, "orders#17").record, record);
}

TEST_F(OpenStore, OpensARelativePathFromWhereTheProgramIs) {
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(directory_);
  const auto store = open_store("sqlite:b.db");
  std::filesystem::current_path(before);
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/b.db"));
  EXPECT_EQ(store->name(), "sqlite:" + directory_ + "/b.db");
}

TEST_F(OpenStore, TakesEveryParameter) {
  open_store("sqlite:" + directory_ +
             "/deep/er/c.db?create=1&create_directories=1&busy_timeout=250ms&checkpoint_pages=100&cache_bytes=1048576"
             "&recent_keys=1&allow_hard_links=1");
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/deep/er/c.db"));
}

TEST_F(OpenStore, DecodesAndEscapesPaths) {
  const std::string name = "50% #1? a&b=\xC3\xBC.db";
  EXPECT_EQ(escape_url("/" + name), "/50%25%20%231%3F%20a%26b=%C3%BC.db");
  open_store("sqlite:" + escape_url(directory_ + "/" + name));
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/" + name));
}

TEST_F(OpenStore, ParametersReachTheStore) {
  const std::string missing = "sqlite:" + directory_ + "/none.db?create=0";
  try {
    open_store(missing);
    FAIL() << "made a file that it was told not to make";
  } catch (const Exception& error) {
    EXPECT_EQ(error.kind(), ErrorKind::unavailable);
    EXPECT_THAT(error.what(), HasSubstr("none.db"));
  }
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/none.db"));
  try {
    open_store("sqlite:" + directory_ + "/none.db?moves_to=sqlite:" + directory_ + "/second.db");
    FAIL() << "made a new first store of a move";
  } catch (const Exception& error) {
    EXPECT_THAT(error.what(), HasSubstr("If the move is over, name the second store alone"));
  }
  EXPECT_THAT(refusal("sqlite:" + directory_ + "/x.db?checkpoint_pages=1"), HasSubstr("checkpoint_pages must be 100"));
  EXPECT_THAT(refusal("sqlite:" + directory_ + "/x.db?checkpoint_pages=99999999999999"),
              HasSubstr("checkpoint_pages must be 100"));
  EXPECT_THAT(refusal("sqlite:" + directory_ + "/x.db?cache_bytes=1"), HasSubstr("cache_bytes must be 1 MiB"));
  EXPECT_THAT(refusal("sqlite:" + directory_ + "/x.db?recent_keys=0"), HasSubstr("recent_keys must be 1"));
  EXPECT_THAT(refusal("sqlite:" + directory_ + "/x.db?busy_timeout=1h"), HasSubstr("busy_timeout must be 0 to 10 min"));
}

TEST_F(OpenStore, LeavesToLibpqWhatIsItsOwn) {
  const stores::PostgresqlOptions options = stores::postgresql_options(
      "postgresql://us%40er:p%2Fw@h1:1,h2:2/db?schema=pay&sslmode=require&options=-c%20x%3D1&operation_timeout=3s");
  EXPECT_EQ(options.url, "postgresql://us%40er:p%2Fw@h1:1,h2:2/db?sslmode=require&options=%2Dc%20x%3D1");
  EXPECT_EQ(options.schema, "pay");
  EXPECT_EQ(options.operation_timeout, Millis{3'000});
  // Opened without a server: the first operation connects.
  const auto store = open_store("postgres://user:secret@h1:1,h2:2/db?schema=pay&lock_timeout=5ms");
  EXPECT_EQ(store->name(), "postgresql://h1,h2:1,2/db schema pay");
  EXPECT_THAT(refusal("postgresql://h/db?sslmodus=require"), HasSubstr("sslmodus"));
  EXPECT_THAT(refusal("postgresql://h/db?lock_timeout=1h"), HasSubstr("lock_timeout must be 1ms to 10s"));
  EXPECT_THAT(refusal("postgresql://h/db?write_connections=0"), HasSubstr("write_connections must be 1 to 16"));
  EXPECT_EQ(stores::postgresql_options("postgresql://h/db?write_connections=2").write_connections, 2U);
  EXPECT_THAT(refusal("postgresql:db"), HasSubstr("two slashes are missing"));
  EXPECT_THAT(refusal("postgresql://h/db?schema="), HasSubstr("1 to 63 bytes"));
}

TEST_F(OpenStore, TellsNobodyAPassword) {
  for (const char* const url :
       {"postgresql://user:secret@h/db?lock_timeout=1", "postgresql://user:se@cret@h/db?lock_timeout=1",
        "postgresql://h/db?password=secret&lock_timeout=1", "postgresql://u:secret@h/db?sslmodus=1",
        "postgresql://u:sec%ret@h/db", "postgresql://u:sec#ret@h/db", "postgresql://u:secret@h:port:port/db",
        "postgresql://u:sec/ret@h/db", "gopher://user:secret@host",
        "sqlite:a.db?craete=1&moves_to=postgresql%3A%2F%2Fu%3Asecret%40h%2Fdb",
        "sqlite:a.db?craete=1&moves_to=postgresql://h/db?schema=x%26password=secret",
        "postgresql://h/db?password=secret&moves_to=postgresql://h/db?password=secret%26schema=%25zz",
        "sqlite:a.db?moves_to=postgresql://h/db?password=secret%26lock_timeout=1",
        "sqlite:a.db?craete=1&offload=gopher://user:secret@host"}) {
    const std::string said = refusal(url);
    EXPECT_NE(said, "") << url;
    EXPECT_THAT(said, Not(HasSubstr("ret"))) << url;
  }
}

TEST_F(OpenStore, RefusesWhatItDoesNotKnowByName) {
  EXPECT_EQ(refusal("redis://localhost"),
            "store URL 'redis://localhost': unknown scheme 'redis'; this build knows memory:, sqlite:, postgresql:, "
            "postgres:, dynamodb:, once:");
  EXPECT_THAT(refusal("dynamodb:table"), HasSubstr("two slashes and the table are missing"));
  EXPECT_THAT(refusal("memory:?size=3"), AllOf(HasSubstr("unknown parameter 'size'"), HasSubstr("memory: takes none")));
  EXPECT_THAT(
      refusal("sqlite:/tmp/x.db?durability=full"),
      AllOf(HasSubstr("unknown parameter 'durability'"),
            HasSubstr(
                "create, create_directories, allow_hard_links, allow_shared_file_system, read_only, write_clear, ")));
}

TEST_F(OpenStore, NamesTheStoreThatItsRecordsMoveTo) {
  const std::string first = "sqlite:" + directory_ + "/a.db?moves_to=";
  const std::string next = "sqlite:" + directory_ + "/b.db";
  // Where the first file was deleted after its move, a new one would let everything run again.
  EXPECT_THROW(open_store(first + next), Exception);
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/a.db"));
  open_store("sqlite:" + directory_ + "/a.db");
  const auto store = open_store(first + next);
  EXPECT_EQ(store->name(), "sqlite:" + directory_ + "/a.db");
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/b.db"));
  EXPECT_FALSE(store->capabilities().hands_out);
  EXPECT_GE(store->capabilities().default_skew, Millis{2'000});
  open_store(first + "postgresql://user:secret@h1,h2/db?schema=pay%26lock_timeout=5ms");
  // A mistake in the second URL is found before it is needed.
  EXPECT_EQ(refusal(first),
            "URL of moves_to= '': it must begin with a scheme and a colon, as in "
            "sqlite:/var/lib/once/once.db");
  EXPECT_THAT(refusal(first + "sqlite:b.db?craete=1"), HasSubstr("unknown parameter 'craete'"));
  EXPECT_THAT(refusal(first + "postgresql://h/db?sslmodus=require"), HasSubstr("sslmodus"));
  EXPECT_THAT(refusal(first + "postgresql://user:secret@h/db?lock_timeout=1"),
              AllOf(HasSubstr("lock_timeout"), Not(HasSubstr("secret"))));
  EXPECT_THAT(refusal(first + "dynamodb://table"), HasSubstr("SQLite or PostgreSQL"));
  EXPECT_THAT(refusal(first + "memory:"), HasSubstr("SQLite or PostgreSQL"));
  EXPECT_THAT(refusal("memory:?moves_to=" + next), HasSubstr("cannot be moved while programs use it"));
  for (const char* const of_both : {"seal", "seal_command", "read_clear", "write_clear", "offload"}) {
    EXPECT_THAT(refusal(first + next + "?" + of_both + "=0"), HasSubstr("counts for both")) << of_both;
  }
  EXPECT_THAT(refusal(first + next + "?moves_to=x"), HasSubstr("the first store only"));
  EXPECT_THAT(refusal(first + next + "&moves_to=" + next), HasSubstr("given twice"));
  EXPECT_THAT(refusal(first + "postgresql://h/db?schema=pay&sslmode=verify-full"), HasSubstr("could belong to either"));
  open_store("sqlite:" + directory_ + "/a.db?moves_to=postgresql://h/db%3Fschema=pay&busy_timeout=5s");
}

TEST_F(OpenStore, RefusesWhatIsMalformedByName) {
  for (const char* url : {"", "once.db", "/var/lib/once.db", ":x", "SQLITE:x", "C:\\x"}) {
    EXPECT_THAT(refusal(url), HasSubstr("must begin with a scheme and a colon")) << url;
  }
  EXPECT_THAT(refusal("memory:x"), HasSubstr("memory: has no path"));
  EXPECT_THAT(refusal("sqlite:"), HasSubstr("the path of the file is missing"));
  EXPECT_THAT(refusal("sqlite:?create=1"), HasSubstr("the path of the file is missing"));
  EXPECT_THAT(refusal("sqlite:///tmp/x.db"), HasSubstr("write one slash"));
  EXPECT_THAT(refusal("sqlite:/tmp/x#y.db"), HasSubstr("%23"));
  EXPECT_THAT(refusal("sqlite:/tmp/x%2"), HasSubstr("two hexadecimal digits"));
  EXPECT_THAT(refusal("sqlite:/tmp/x%zz.db"), HasSubstr("two hexadecimal digits"));
  EXPECT_THAT(refusal("sqlite:/tmp/x%00.db"), HasSubstr("NUL"));
  EXPECT_THAT(refusal("sqlite:/tmp/x.db?create"), HasSubstr("'create' is not a parameter"));
  EXPECT_THAT(refusal("sqlite:/tmp/x.db?=1"), HasSubstr("'=1' is not a parameter"));
  EXPECT_THAT(refusal("sqlite:/tmp/x.db?create=1&&"), HasSubstr("'' is not a parameter"));
  EXPECT_THAT(refusal("sqlite:/tmp/x.db?create=1&create=1"), HasSubstr("'create' is given twice"));
  EXPECT_THAT(refusal("sqlite:/tmp/x.db?create=yes"), HasSubstr("'create' must be 0 or 1"));
  EXPECT_THAT(refusal("sqlite:/tmp/x.db?create=%4"), HasSubstr("the value of 'create'"));
  EXPECT_THAT(refusal("sqlite:/tmp/x.db?checkpoint_pages=4k"), HasSubstr("'checkpoint_pages' must be a whole number"));
  for (const char* time : {"5", "s", "-1s", "1.5s", "5 s", "18446744073709551615h", ""}) {
    EXPECT_THAT(refusal("sqlite:/tmp/x.db?busy_timeout=" + std::string(time)),
                HasSubstr("'busy_timeout' must be a time"))
        << time;
  }
}

TEST_F(OpenStore, OpensOffloadsByUrl) {
  const auto offload = open_offload("file:" + escape_url(directory_ + "/50% large"));
  std::string location;
  offload->put("hint", "bytes", [&](OffloadAnswer answer) { location = answer.text; });
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/50% large/" + location.substr(5)));
}

TEST_F(OpenStore, RefusesOffloadsByName) {
  const auto refused = [](const std::string& url) {
    try {
      open_offload(url);
    } catch (const Exception& error) {
      EXPECT_EQ(error.kind(), ErrorKind::misuse) << error.what();
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(refused("gopher://host/x"), HasSubstr("offload URL 'gopher://host/x': unknown scheme 'gopher'"));
  EXPECT_THAT(refused("gopher://host/x"), HasSubstr("this build knows file:, s3:"));
  EXPECT_THAT(refused(directory_), HasSubstr("must begin with a scheme and a colon"));
  EXPECT_THAT(refused("file:"), HasSubstr("the path of the directory is missing"));
  EXPECT_THAT(refused("file://" + directory_), HasSubstr("write one slash"));
  EXPECT_THAT(refused("file:" + directory_ + "?sync=0"), HasSubstr("unknown parameter 'sync'"));
  EXPECT_THAT(refused("s3:bucket"), HasSubstr("two slashes and the bucket are missing"));
  EXPECT_THAT(refused("s3://?region=eu-central-1"), HasSubstr("'' is not a bucket's name"));
  EXPECT_THAT(refused("s3://Bucket/x?region=eu-central-1"), HasSubstr("'Bucket' is not a bucket's name"));
  EXPECT_THAT(refused("s3://bucket/x?acl=private"),
              AllOf(HasSubstr("unknown parameter 'acl'"),
                    HasSubstr("region, endpoint, profile, ca_file, path_style, timeout")));
  EXPECT_THAT(refused("s3://bucket/x?region=EU"), HasSubstr("region"));
  EXPECT_THAT(refused("s3://bucket/x?region=eu-central-1&timeout=2h"), HasSubstr("timeout must be 1 ms to 1 h"));
  EXPECT_THAT(refused("s3://bucket/x?region=eu-central-1&endpoint=localhost:9000"), HasSubstr("endpoint"));
}

TEST_F(OpenStore, OneUrlOpensBoth) {
  const std::string store_url = "sqlite:" + directory_ + "/both.db?create=1";
  const std::string url = store_url + "&offload=file:" + directory_ + "/large";
  Backend backend = open_backend(url);
  EXPECT_EQ(backend.store->name(), "sqlite:" + directory_ + "/both.db");
  ASSERT_TRUE(backend.offload);
  EXPECT_TRUE(std::filesystem::is_directory(directory_ + "/large"));
  EXPECT_FALSE(open_backend(store_url).offload);
  EXPECT_TRUE(open_backend("memory:?offload=s3://bucket/x?region=eu-central-1%26path_style=1").offload);
  EXPECT_THAT(refusal(url), HasSubstr("offload= names a second place: open_backend() opens both"));
  // An unusable offload is said before the store is made.
  EXPECT_THROW(open_backend("sqlite:" + directory_ + "/none.db?offload=gopher:x"), Exception);
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/none.db"));
}

}  // namespace open_store_test
}  // namespace once
