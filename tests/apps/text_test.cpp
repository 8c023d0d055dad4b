// Words of the command line and of the output.
#include "output/text.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include <once/error.hpp>

namespace once::cli {
namespace text_test {

using namespace std::chrono_literals;

TEST(Duration, WholeNumbersAndUnits) {
  EXPECT_EQ(parse_duration("500ms", "x"), 500ms);
  EXPECT_EQ(parse_duration("0s", "x"), 0ms);
  EXPECT_EQ(parse_duration("30s", "x"), 30s);
  EXPECT_EQ(parse_duration("5m", "x"), 5min);
  EXPECT_EQ(parse_duration("24h", "x"), 24h);
  EXPECT_EQ(parse_duration("3653d", "x"), 24h * 3653);
}

TEST(Duration, NothingElse) {
  for (const char* const text : {"", "s", "30", "30 s", " 30s", "30s ", "-1s", "+1s", "1.5s", "1e3s", "30S", "1h30m",
                                 "0x10s", "3654d", "18446744073709551616s", "18446744073709551615d"}) {
    try {
      parse_duration(text, "--lease");
      ADD_FAILURE() << text;
    } catch (const Exception& error) {
      EXPECT_EQ(error.kind(), ErrorKind::misuse);
      EXPECT_NE(std::string(error.what()).find("--lease"), std::string::npos);
    }
  }
}

TEST(Duration, OnlyARetentionMayBeNever) {
  EXPECT_EQ(parse_retention("never", "x"), keep_forever);
  EXPECT_EQ(parse_retention("24h", "x"), 24h);
  EXPECT_THROW(parse_duration("never", "x"), Exception);
  try {
    parse_retention("forever", "--retention");
    ADD_FAILURE();
  } catch (const Exception& error) {
    EXPECT_NE(std::string(error.what()).find("24h or 7d, or never"), std::string::npos) << error.what();
  }
}

TEST(Size, NumbersAndUnits) {
  EXPECT_EQ(parse_size("0", "x"), 0U);
  EXPECT_EQ(parse_size("65536", "x"), 65536U);
  EXPECT_EQ(parse_size("1KiB", "x"), 1024U);
  EXPECT_EQ(parse_size("10MB", "x"), 10'000'000U);
  EXPECT_EQ(parse_size("2GiB", "x"), std::uint64_t{2} << 30);
  for (const char* const text : {"", "KiB", "1k", "1.5MiB", "-1", "18446744073709551616", "18446744073709551615KiB"}) {
    EXPECT_THROW(parse_size(text, "x"), Exception) << text;
  }
}

TEST(Hex, Pairs) {
  EXPECT_EQ(parse_hex("00fF61", "x"), std::string("\0\xff"
                                                  "a",
                                                  3));
  EXPECT_EQ(parse_hex("", "x"), "");
  EXPECT_THROW(parse_hex("0", "x"), Exception);
  EXPECT_THROW(parse_hex("0g", "x"), Exception);
}

TEST(Durations, ForPeople) {
  EXPECT_EQ(show_duration(0ms), "0ms");
  EXPECT_EQ(show_duration(999ms), "999ms");
  EXPECT_EQ(show_duration(61s), "1m1s");
  EXPECT_EQ(show_duration(24h * 3 + 2h + 1s), "3d2h");
  EXPECT_EQ(show_duration(1h + 1s), "1h");
  EXPECT_EQ(show_duration(-5s), "-5s");
}

TEST(Sizes, ForPeople) {
  EXPECT_EQ(show_size(0), "0 B");
  EXPECT_EQ(show_size(1023), "1023 B");
  EXPECT_EQ(show_size(1536), "1.5 KiB");
  EXPECT_EQ(show_size(std::uint64_t{64} << 20), "64.0 MiB");
}

TEST(Escaping, NothingSteersATerminal) {
  EXPECT_EQ(escaped("plain \xC3\xA9"), "plain \xC3\xA9");
  EXPECT_EQ(escaped("a\nb\t\\\x1b[0m\x7f"), "a\\nb\\t\\\\\\x1B[0m\\x7F");
  EXPECT_EQ(escaped(std::string("\0", 1)), "\\x00");
  EXPECT_EQ(escaped("\xff\xC3\xA9"), "\\xFF\\xC3\\xA9");  // Not UTF-8 as a whole.
  EXPECT_EQ(escaped("\xC2\x9B"
                    "31m"),
            "\\xC2\\x9B31m");  // U+009B is a control character too.
}

// U+202E shows "exe.fdp" as "pdf.exe"; U+2028 begins a line that nobody wrote; nobody sees U+200B and U+E0041.
TEST(Escaping, NothingSteersAReader) {
  EXPECT_EQ(escaped("a\u202Eb"), "a\\xE2\\x80\\xAEb");
  EXPECT_EQ(escaped("a\u2028b\u2029"), "a\\xE2\\x80\\xA8b\\xE2\\x80\\xA9");
  EXPECT_EQ(escaped("\U000E0041"), "\\xF3\\xA0\\x81\\x81");
  for (const std::string hidden :
       {"\u00AD", "\u061C", "\u180E", "\u200B", "\u200D", "\u200E", "\u200F", "\u202A", "\u2060", "\u2066", "\u2069",
        "\uFEFF", "\uFFF9", "\u3164", "\U0001D173", "\u034F", "\uFE0F", "\U000E0100"}) {
    EXPECT_EQ(escaped(hidden).substr(0, 2), "\\x") << escaped(hidden);
  }
  for (const std::string shown : {"\u00E9", "\u4F60", "\u0627", "\U0001F600", "\u20AC", "\u2026", "\uFFFD"}) {
    EXPECT_EQ(escaped(shown), shown);
  }
}

TEST(Tables, LineUp) {
  Table table({"A", "LONG"});
  table.add({"\xC3\xA9", "x"});
  table.add({"abc", "y"});
  EXPECT_EQ(table.rows(), 3U);
  EXPECT_EQ(table.take(), "A    LONG\n\xC3\xA9    x\nabc  y\n");
  table.add({"a", "z"});
  EXPECT_EQ(table.take(), "a    z\n");
  EXPECT_EQ(table.take(), "");
}

}  // namespace text_test
}  // namespace once::cli
