#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include <once/error.hpp>
#include <once/fingerprint.hpp>

#include "core/digest.hpp"

namespace once {
namespace digest_test {

// FIPS 180-2, appendix B, and the digest of nothing.
TEST(Digest, sha256_of_the_published_examples) {
  EXPECT_EQ(to_hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(to_hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(to_hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(to_hex(sha256(std::string(1'000'000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Digest, parts_are_digested_as_if_they_were_joined) {
  EXPECT_EQ(sha256_joined({}), sha256(""));
  EXPECT_EQ(sha256_joined({"a", "", "bc"}), sha256("abc"));
}

TEST(Digest, sha256_on_many_threads) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([i] {
      const std::string text(static_cast<std::size_t>(i) * 100, 'x');
      const Sha256 first = sha256(text);
      for (int round = 0; round < 200; ++round) EXPECT_EQ(sha256(text), first);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Digest, hex_is_lower_case_and_two_digits_a_byte) {
  EXPECT_EQ(to_hex(std::string_view("\x00\x0F\xF0\xFF\x7A", 5)), "000ff0ff7a");
  EXPECT_EQ(to_hex(std::string_view()), "");
}

TEST(Fingerprint, keeps_up_to_64_bytes) {
  for (const std::size_t bytes : {0U, 1U, 20U, 32U, 63U, 64U}) {
    const std::string text(bytes, '\xFF');
    const Fingerprint print{std::string_view(text)};
    EXPECT_EQ(print.bytes(), text);
    EXPECT_EQ(print.empty(), bytes == 0);
    EXPECT_EQ(print.hex(), to_hex(text));
  }
  try {
    const Fingerprint print{std::string_view(std::string(65, 'x'))};
    FAIL() << "65 bytes were taken";
  } catch (const Exception& error) {
    EXPECT_EQ(error.kind(), ErrorKind::misuse);
    EXPECT_NE(std::string(error.what()).find("65"), std::string::npos);
  }
}

TEST(Fingerprint, compares_length_and_bytes) {
  EXPECT_EQ(Fingerprint(), Fingerprint(std::string_view()));
  EXPECT_FALSE(Fingerprint() == Fingerprint(std::string_view("\0", 1)));
  EXPECT_FALSE(Fingerprint(std::string_view("a")) == Fingerprint(std::string_view("a\0", 2)));
  EXPECT_EQ(Fingerprint::of("x"), Fingerprint(sha256("x")));
  EXPECT_FALSE(Fingerprint::of("x") == Fingerprint::of("y"));
  EXPECT_EQ(Fingerprint::of("").bytes().size(), 32U) << "an empty payload has a fingerprint";
}

}  // namespace digest_test
}  // namespace once
