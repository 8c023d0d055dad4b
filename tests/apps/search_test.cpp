// Labels in place of keys, while others write, and in stores that do not list.
#include "commands/find_record.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <once/error.hpp>
#include <once/key.hpp>
#include <once/platform/blocking.hpp>
#include <once/stores/memory.hpp>
#include <once/testing/records.hpp>

#include "../engine/forwarding_store.hpp"
#include "operators/changes.hpp"

namespace once::cli {
namespace search_test {

using ::testing::HasSubstr;

// Tells when it lists.
class Watched final : public testing::ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  void list(ListQuery query, Callback<void(ListPage)> done) override {
    if (on_list) on_list();
    if (!error) return ForwardingStore::list(std::move(query), std::move(done));
    ListPage page;
    page.error = error;
    done(std::move(page));
  }
  std::function<void()> on_list;
  std::optional<Error> error;
};

class SearchTest : public ::testing::Test {
 protected:
  Record keep(const std::string& key, const std::string& label) {
    Record record = testing::plain_record(Key("", key).stored());
    record.state = State::unknown;
    record.expires_at = never;
    record.label = label;
    EXPECT_EQ(blocking::insert(*memory, record).status, AnswerStatus::done);
    return record;
  }
  RecordFound find(const std::string& text) {
    KeyOptions options;
    options.text = text;
    options.has_text = true;
    return find_record(access, name_of(options), options);
  }

  std::shared_ptr<Store> memory = stores::make_memory_store();
  std::shared_ptr<Watched> watched = std::make_shared<Watched>(memory);
  StoreAccess access{.url = "memory:", .store = watched, .offload = {}, .offload_name = {}, .offload_directory = {}};
};

TEST_F(SearchTest, AKeyIsLookedUpAndNothingIsListed) {
  keep("order-17", "");
  watched->on_list = [] { ADD_FAILURE() << "listed"; };
  EXPECT_EQ(find("order-17").key, "#order-17");
  EXPECT_EQ(find("order-17").label, "");
}

TEST_F(SearchTest, AKeyWinsThatIsInsertedMeanwhile) {
  keep("digest", "order-17");
  EXPECT_EQ(find("order-17").key, "#digest");
  watched->on_list = [&] { keep("order-17", ""); };
  const RecordFound found = find("order-17");
  EXPECT_EQ(found.key, "#order-17");
  EXPECT_EQ(found.label, "");
}

TEST_F(SearchTest, ARecordThatLostItsLabelIsNotChanged) {
  Record record = keep("digest", "order-17");
  const RecordFound found = find("order-17");
  record.label = "order-18";
  ASSERT_EQ(blocking::replace(*memory, record, {.owner = record.owner, .revision = record.revision}).status,
            AnswerStatus::done);
  const Changed changed =
      change_record(access, {.stored_key = found.key, .label = found.label, .reason = {.by = "a", .text = "r"}},
                    [](const Record&, const operate::Reason&, Stamp, Millis) -> operate::Plan {
                      ADD_FAILURE() << "planned";
                      return {};
                    });
  EXPECT_EQ(changed.kind, Changed::Kind::other);
  EXPECT_THAT(changed.text, HasSubstr("no longer has the label 'order-17'. Nothing was changed"));
}

TEST_F(SearchTest, NoLabelIsTakenFromAListThatFailed) {
  keep("digest", "order-17");
  for (const ErrorKind kind : {ErrorKind::unavailable, ErrorKind::in_doubt, ErrorKind::corrupt}) {
    watched->error = Error{kind, "the list broke off"};
    try {
      find("order-17");
      ADD_FAILURE() << "found";
    } catch (const Exception& error) {
      EXPECT_EQ(error.kind(), kind);
      EXPECT_THAT(error.what(), HasSubstr("no record has the key 'order-17', and whether exactly one"));
    }
  }
  // Who may not list works with keys.
  watched->error = Error{ErrorKind::misuse, "no permission"};
  EXPECT_EQ(find("order-17").key, "#order-17");
  EXPECT_EQ(find("order-17").label, "");
}

}  // namespace search_test
}  // namespace once::cli
