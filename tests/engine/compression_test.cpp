// Results that are kept compressed: when, that nobody sees it, and what happens to those that are not whole.
#include <once/engine/compression.hpp>

#include "engine_test.hpp"

namespace once::testing {
namespace compression_test {

std::string text(std::size_t bytes) {
  std::string out;
  for (int i = 0; out.size() < bytes; ++i) out += "{\"order\":" + std::to_string(i * 7919) + ",\"paid\":true}\n";
  out.resize(bytes);
  return out;
}
std::string noise(std::size_t bytes) {
  std::string out(bytes, '\0');
  SeededRandom random(7);
  random.fill({reinterpret_cast<std::uint8_t*>(out.data()), out.size()});
  return out;
}

TEST(Compression, GivesBackWhatWasThere) {
  for (const std::size_t bytes : {std::size_t{200}, std::size_t{1'000}, std::size_t{300'000}}) {
    const Result whole = Result::inlined(text(bytes), "application/json");
    auto kept = compressed(whole, 1'000'000);
    ASSERT_TRUE(kept) << bytes;
    EXPECT_EQ(kept->placement, Placement::compressed);
    EXPECT_EQ(kept->size, bytes);
    EXPECT_EQ(kept->digest, sha256(whole.bytes));
    EXPECT_EQ(kept->content_type, "application/json");
    EXPECT_LE(kept->bytes.size(), bytes - bytes / 10);
    EXPECT_EQ(expand(*kept), std::nullopt);
    EXPECT_EQ(*kept, whole);
  }
}

TEST(Compression, IsLeftBeWhereItDoesNotPay) {
  EXPECT_FALSE(compressed(Result::inlined(noise(10'000)), 1'000'000)) << "random bytes";
  EXPECT_FALSE(compressed(Result::inlined(""), 1'000'000));
  const std::size_t size = compressed(Result::inlined(text(10'000)), 1'000'000).value().bytes.size();
  EXPECT_TRUE(compressed(Result::inlined(text(10'000)), size + 100));
  EXPECT_FALSE(compressed(Result::inlined(text(10'000)), size - 1)) << "more than there is room for";
  EXPECT_FALSE(compressed(Result::inlined(std::string(max_compressible_bytes + 1, 'x')), 1'000'000));
}

TEST(Compression, ExpandsOnlyWhatIsCompressed) {
  for (const Placement placement : {Placement::inlined, Placement::offloaded, Placement::dropped}) {
    Result result = Result::inlined("bytes");
    result.placement = placement;
    const Result before = result;
    EXPECT_EQ(expand(result), std::nullopt);
    EXPECT_EQ(result, before);
  }
}

TEST(Compression, WhatIsNotWholeIsCorrupt) {
  const Result good = compressed(Result::inlined(text(5'000)), 5'000).value();
  const auto refused = [&](auto change) {
    Result result = good;
    change(result);
    const Result before = result;
    const auto error = expand(result);
    EXPECT_EQ(result, before);
    EXPECT_EQ(error.value_or(Error{}).kind, ErrorKind::corrupt);
    return error.value_or(Error{}).message;
  };
  EXPECT_THAT(refused([](Result& r) { r.bytes.clear(); }), HasSubstr("does not hold 5000 bytes of zstd"));
  EXPECT_THAT(refused([](Result& r) { r.bytes = "plain text"; }), HasSubstr("not the one that was kept"));
  EXPECT_THAT(refused([](Result& r) { r.size = 4'999; }), HasSubstr("does not hold 4999"));
  EXPECT_THAT(refused([](Result& r) { r.size = 1ULL << 40U; }), HasSubstr("it claims 1099511627776 bytes"));
  EXPECT_THAT(refused([](Result& r) { r.digest[0] ^= 1U; }), HasSubstr("other bytes"));
  refused([](Result& r) { r.bytes += r.bytes; });
  for (std::size_t at = 0; at < good.bytes.size(); at += 7) {
    refused([at](Result& r) { r.bytes.resize(at); });
    // A changed byte is found, or does not matter to what comes out.
    Result changed = good;
    changed.bytes[at] = static_cast<char>(changed.bytes[at] ^ 0x40);
    if (!expand(changed)) {
      EXPECT_EQ(changed.bytes, text(5'000)) << at;
    }
  }
}

TEST(Compression, ASmallFrameCannotFillTheMemory) {
  Result bomb = compressed(Result::inlined(std::string(max_compressible_bytes, '\0')), 1'000'000).value();
  EXPECT_LT(bomb.bytes.size(), 10'000U);
  Result lying = bomb;
  lying.size = 1'000;
  EXPECT_EQ(expand(lying).value_or(Error{}).kind, ErrorKind::corrupt);
  EXPECT_EQ(expand(bomb), std::nullopt);
}

class CompressionTest : public EngineTest {
 protected:
  Process compressing(std::size_t cache = 0) {
    return process([cache](EngineOptions& o) {
      o.policy.compress_over_bytes = 100;
      o.policy.heartbeat = false;
      o.cache_records = cache;
    });
  }
  const std::string large = text(5'000);
};

TEST_F(CompressionTest, NobodySeesIt) {
  auto p = compressing();
  auto begun = begin(p, "a");
  EXPECT_EQ(complete(begun->claim, large)->kind, Finish::Kind::recorded);
  EXPECT_EQ(stored("a")->result.placement, Placement::compressed);
  EXPECT_LT(stored("a")->result.bytes.size(), 2'000U);
  EXPECT_EQ(stored("a")->result.digest, sha256(large));
  auto other = process();
  for (const Process* each : {&p, &other}) {
    auto again = begin(*each, "a");
    ASSERT_EQ(again->kind, Begin::Kind::replayed);
    EXPECT_EQ(again->record->result, Result::inlined(large));
    EXPECT_EQ((*each)->run("a", {}, [] { ADD_FAILURE() << "a second run"; }).value(), large);
  }
}

TEST_F(CompressionTest, WaitersAndTheCacheGetIt) {
  auto p = compressing(16);
  auto begun = begin(p, "a");
  auto waiter = begin(p, "a", waiting());
  complete(begun->claim, large);
  ASSERT_TRUE(waiter.ready());
  EXPECT_EQ(waiter->record->result, Result::inlined(large));
  EXPECT_EQ(begin(p, "a")->record->result, Result::inlined(large));
  EXPECT_EQ(begin(p, "a")->record->result, Result::inlined(large)) << "from the cache";
}

TEST_F(CompressionTest, AFailureAndWhatSupersedesAreExpanded) {
  auto p = compressing();
  auto begun = begin(p, "a");
  Slot<Finish> failed;
  begun->claim.fail({.code = "declined", .message = "no"}, Result::inlined(large), failed.fill());
  EXPECT_EQ(stored("a")->result.placement, Placement::compressed);
  EXPECT_EQ(begin(p, "a")->record->result, Result::inlined(large));

  auto late = begin(p, "b");
  clock->advance(9s);
  auto other = compressing();
  auto taken = begin(other, "b");
  complete(taken->claim, large);
  auto finish = complete(late->claim, "late");
  ASSERT_EQ(finish->kind, Finish::Kind::superseded);
  EXPECT_EQ(finish->record->result, Result::inlined(large));
}

TEST_F(CompressionTest, AnAnswerThatWasLostIsRecognised) {
  auto p = compressing();
  auto begun = begin(p, "a");
  store->script({Next::lose});
  auto finish = complete(begun->claim, large);
  while (!finish.ready() && timers->run_next()) {
  }
  EXPECT_EQ(finish->kind, Finish::Kind::recorded);
  EXPECT_EQ(begin(p, "a")->record->result, Result::inlined(large));
}

TEST_F(CompressionTest, CorruptBytesAreAClearErrorAndNoSecondRun) {
  auto p = compressing();
  auto begun = begin(p, "a");
  complete(begun->claim, large);
  operate("a", [](Record record) {
    record.revision += 1;
    record.result.bytes.resize(100);
    return record;
  });
  auto broken = begin(p, "a");
  ASSERT_EQ(broken->kind, Begin::Kind::error);
  EXPECT_EQ(broken->error.kind, ErrorKind::corrupt);
  EXPECT_THAT(broken->error.message, HasSubstr("not the one that was kept"));
  EXPECT_EQ(p.events->count(EventKind::store_error), 1U);
  EXPECT_EQ(p->run("a", {}, [] { ADD_FAILURE() << "a second run"; }).kind, Outcome::Kind::error);
}

TEST_F(CompressionTest, OnlyWhereTheStoreAndThePolicyWantIt) {
  auto p = process();
  auto a = begin(p, "a");
  complete(a->claim, large);
  EXPECT_EQ(stored("a")->result.placement, Placement::inlined) << "memory alone";
  store->durable = true;
  auto durable = process();
  auto b = begin(durable, "b");
  complete(b->claim, large);
  EXPECT_EQ(stored("b")->result.placement, Placement::compressed);
  auto c = begin(durable, "c");
  complete(c->claim, text(1'024));
  EXPECT_EQ(stored("c")->result.placement, Placement::inlined) << "small";
  auto d = begin(durable, "d");
  complete(d->claim, noise(5'000));
  EXPECT_EQ(stored("d")->result.placement, Placement::inlined) << "it would not get smaller";
  store->keeps_compressed = false;
  auto plain = compressing();
  auto e = begin(plain, "e");
  complete(e->claim, large);
  EXPECT_EQ(stored("e")->result.placement, Placement::inlined) << "others read these records";
}

TEST_F(CompressionTest, MakesRoomInTheRecord) {
  auto p = process([](EngineOptions& o) {
    o.policy.compress_over_bytes = 100;
    o.policy.max_inline_bytes = 2'000;
    o.policy.heartbeat = false;
  });
  auto a = begin(p, "a");
  complete(a->claim, large);
  EXPECT_EQ(stored("a")->result.placement, Placement::compressed) << "5000 bytes where 2000 fit";
  auto b = begin(p, "b");
  complete(b->claim, noise(5'000));
  EXPECT_EQ(stored("b")->result.placement, Placement::dropped);
  EXPECT_EQ(stored("b")->result.digest, sha256(noise(5'000)));
}

TEST_F(CompressionTest, WhatTheStoreRefusesIsDroppedWithItsOwnSizeAndDigest) {
  auto p = compressing();
  auto begun = begin(p, "a");
  store->script({Next::bad});
  EXPECT_EQ(complete(begun->claim, large)->kind, Finish::Kind::recorded);
  EXPECT_EQ(stored("a")->result.placement, Placement::dropped);
  EXPECT_EQ(stored("a")->result.size, large.size());
  EXPECT_EQ(stored("a")->result.digest, sha256(large));
}

}  // namespace compression_test
}  // namespace once::testing
