// The form in which once run keeps what a command left.
#include "operators/run_result.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include <once/error.hpp>

namespace once::operators {
namespace run_result_test {

constexpr std::size_t enough = 1 << 20;
constexpr CommandEnd exit_3{.signaled = false, .code = 3};

TEST(RunResult, KeepsBytesOrderAndEnd) {
  const std::string binary("a\0\xff\n", 4);
  Recorder recorder(enough);
  recorder.add(Stream::output, "one ");
  recorder.add(Stream::output, binary);
  recorder.add(Stream::error, "two");
  recorder.add(Stream::output, "");
  recorder.add(Stream::output, "three");
  const std::string bytes = recorder.finish(exit_3);
  const RunResult result = decode_run_result(bytes);
  ASSERT_EQ(result.chunks.size(), 3U);
  EXPECT_EQ(result.chunks[0].bytes, "one " + binary);
  EXPECT_EQ(result.chunks[1].stream, Stream::error);
  EXPECT_EQ(result.of(Stream::output), "one " + binary + "three");
  EXPECT_EQ(result.of(Stream::error), "two");
  EXPECT_EQ(result.end, exit_3);
  EXPECT_FALSE(result.dropped);
  EXPECT_EQ(result.output_bytes, 13U);
  EXPECT_EQ(result.error_bytes, 3U);
}

TEST(RunResult, TheFormIsFixed) {
  Recorder recorder(enough);
  recorder.add(Stream::error, "hi");
  EXPECT_EQ(recorder.finish({.signaled = true, .code = 9}), std::string("once-run\x01"
                                                                        "e\0\0\0\2his\x09",
                                                                        18));
  EXPECT_EQ(Recorder(enough).finish({}), std::string("once-run\x01x\0", 11));
}

TEST(RunResult, ExitCodesAreThoseOfShells) {
  EXPECT_EQ((CommandEnd{.signaled = false, .code = 255}).exit_code(), 255);
  EXPECT_EQ((CommandEnd{.signaled = true, .code = 15}).exit_code(), 143);
}

TEST(RunResult, TooMuchIsCountedAndGivenUp) {
  Recorder recorder(100);
  recorder.add(Stream::output, std::string(95, 'x'));  // With its frame's head: exactly the limit.
  EXPECT_FALSE(recorder.dropped());
  recorder.add(Stream::output, "y");
  EXPECT_TRUE(recorder.dropped());
  recorder.add(Stream::error, "zz");
  const std::string bytes = recorder.finish(exit_3);
  const RunResult result = decode_run_result(bytes);
  EXPECT_TRUE(result.dropped);
  EXPECT_EQ(result.output_bytes, 96U);
  EXPECT_EQ(result.error_bytes, 2U);
  EXPECT_TRUE(result.chunks.empty());
  EXPECT_EQ(result.end, exit_3);
}

std::string sample() {
  Recorder recorder(enough);
  recorder.add(Stream::output, "some output");
  recorder.add(Stream::error, "some error");
  return recorder.finish(exit_3);
}

ErrorKind kind_of_decoding(const std::string& bytes) {
  try {
    decode_run_result(bytes);
  } catch (const Exception& error) {
    return error.kind();
  }
  return ErrorKind::misuse;
}

TEST(RunResult, AnythingElseIsCorrupt) {
  const std::string good = sample();
  for (std::size_t length = 0; length < good.size(); ++length) {
    EXPECT_EQ(kind_of_decoding(good.substr(0, length)), ErrorKind::corrupt) << length;
  }
  EXPECT_EQ(kind_of_decoding(good + '\0'), ErrorKind::corrupt);
  const std::string head("once-run\x01", 9);
  for (const std::string& rest : {std::string("o\0\0\0\0x\0", 7),              // An empty frame.
                                  std::string("o\0\0\0\1ao\0\0\0\1bx\0", 14),  // A split one.
                                  std::string("s\0", 2),                       // No signal.
                                  std::string("s\x41", 2),                     // No signal: 65.
                                  std::string("o\xff\xff\xff\xff"
                                              "abc",
                                              8),  // Longer than what there is.
                                  std::string("q\0", 2)}) {
    EXPECT_EQ(kind_of_decoding(head + rest), ErrorKind::corrupt) << rest.size();
  }
  std::string other_version = good;
  other_version[8] = 2;
  EXPECT_EQ(kind_of_decoding(other_version), ErrorKind::corrupt);
}

// Whatever decodes is what the recorder writes for it: no two forms of one result.
TEST(RunResult, OneFormForOneResult) {
  const std::string good = sample();
  std::mt19937 random(1);
  int decoded = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = good;
    for (auto change = random() % 3; change <= 2; ++change) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    RunResult result;
    try {
      result = decode_run_result(bytes);
    } catch (const Exception& error) {
      ASSERT_EQ(error.kind(), ErrorKind::corrupt);
      continue;
    }
    ++decoded;
    Recorder recorder(enough);
    for (const RunResult::Chunk& chunk : result.chunks) recorder.add(chunk.stream, chunk.bytes);
    ASSERT_EQ(recorder.finish(result.end), bytes);
  }
  EXPECT_GT(decoded, 100);
}

}  // namespace run_result_test
}  // namespace once::operators
