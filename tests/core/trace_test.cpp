// Trace contexts as text: W3C Trace Context and X-Ray's header.
#include <gtest/gtest.h>

#include <once/trace.hpp>

namespace once {
namespace trace_test {

// The examples of the specifications.
constexpr std::string_view w3c = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
constexpr std::string_view xray = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1";

std::string with(std::size_t at, std::string_view part) {
  std::string text(w3c);
  return text.replace(at, part.size(), part);
}

TEST(Trace, is_read_and_written) {
  const auto trace = TraceParent::from_text(w3c);
  ASSERT_TRUE(trace);
  EXPECT_EQ(trace->trace_id_hex(), "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(trace->span_id_hex(), "00f067aa0ba902b7");
  EXPECT_TRUE(trace->sampled);
  EXPECT_EQ(trace->text(), w3c);
  EXPECT_EQ(trace->text().size(), TraceParent::text_bytes);
  EXPECT_EQ(TraceParent::from_text(with(53, "00"))->text(), with(53, "00"));
  EXPECT_EQ(TraceParent::from_text(with(53, "ff"))->text(), w3c) << "only the flag that version 00 defines is kept";
  EXPECT_EQ(TraceParent::from_text(with(53, "02"))->text(), with(53, "00"));
  EXPECT_EQ(TraceParent().text(), "");
  EXPECT_TRUE(TraceParent().empty());
}

TEST(Trace, of_a_later_version_is_read_by_its_first_part) {
  const std::string later = with(0, "cc");
  EXPECT_EQ(TraceParent::from_text(later)->text(), w3c);
  EXPECT_EQ(TraceParent::from_text(later + "-what-the-future-brings")->text(), w3c);
  EXPECT_FALSE(TraceParent::from_text(later + ".what-the-future-brings"));
}

TEST(Trace, that_is_malformed_is_refused) {
  for (const std::string& text : {std::string(),
                                  std::string(w3c) + "-",
                                  std::string(w3c) + "-00",
                                  std::string(w3c.substr(1)),
                                  " " + std::string(w3c),
                                  with(0, "ff"),
                                  with(0, "0x"),
                                  with(2, "_"),
                                  with(35, "_"),
                                  with(52, "_"),
                                  with(53, "0-"),
                                  with(53, "-1"),
                                  with(0, "-0"),
                                  with(3, "4BF92F"),
                                  with(36, "00F0"),
                                  with(53, "0A"),
                                  with(20, "-"),
                                  with(40, "-"),
                                  with(3, "00000000000000000000000000000000"),
                                  with(36, "0000000000000000")}) {
    EXPECT_FALSE(TraceParent::from_text(text)) << text;
  }
}

TEST(Trace, of_xray_is_read_and_written) {
  const auto trace = TraceParent::from_xray(xray);
  ASSERT_TRUE(trace);
  EXPECT_EQ(trace->text(), "00-5759e988bd862e3fe1be46a994272793-53995c3f42cd8ad8-01");
  EXPECT_EQ(trace->xray_text(), xray);
  const auto other = TraceParent::from_xray(
      "Self=1-67891234-12456789abcdef012345678; Sampled=0 ;Parent=53995c3f42cd8ad8;"
      "Root=1-5759e988-bd862e3fe1be46a994272793;Lineage=25:a87bd80c:1;;odd");
  ASSERT_TRUE(other);
  EXPECT_EQ(other->trace_id, trace->trace_id);
  EXPECT_FALSE(other->sampled);
  EXPECT_FALSE(TraceParent::from_xray("Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8")->sampled);
  for (const char* text : {"", "Root=1-5759e988-bd862e3fe1be46a994272793", "Parent=53995c3f42cd8ad8;Sampled=1",
                           "Root=2-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8",
                           "Root=1-5759e988_bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8",
                           "Root=1-5759e988-bd862e3fe1be46a99427279;Parent=53995c3f42cd8ad8",
                           "Root=1-5759e988-bd862e3fe1be46a99427279g;Parent=53995c3f42cd8ad8",
                           "Root=1-00000000-000000000000000000000000;Parent=53995c3f42cd8ad8",
                           "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=0000000000000000",
                           "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad"}) {
    EXPECT_FALSE(TraceParent::from_xray(text)) << text;
  }
}

TEST(Trace, state_is_passed_on_unchanged_or_left_out) {
  const auto state = [](std::string_view text) {
    const TracePtr trace = trace_from(w3c, text);
    return trace == nullptr ? std::string("no trace") : trace->state;
  };
  EXPECT_EQ(state("congo=t61rcWkgMzE,rojo=00f067aa0ba902b7"), "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7");
  EXPECT_EQ(state("a=1 , ,t@v=x=y,"), "a=1 , ,t@v=x=y,") << "empty members and blanks are allowed";
  EXPECT_EQ(state("a=" + std::string(510, 'x')), "a=" + std::string(510, 'x'));
  EXPECT_EQ(state("a=" + std::string(511, 'x')), "");
  std::string members = "a=1";
  for (int i = 1; i < 32; ++i) members += ",b=1";
  EXPECT_EQ(state(members), members);
  EXPECT_EQ(state(members + ",c=1"), "");
  for (const char* text : {"a", "=1", "a=1\r\nX: y", "a=1,b"}) EXPECT_EQ(state(text), "") << text;
  EXPECT_EQ(trace_from("00-xyz", "a=1"), nullptr);
  EXPECT_EQ(trace_from(" " + std::string(w3c) + "\t")->parent.text(), w3c) << "a header's value may have blanks";
  EXPECT_EQ(trace_from_xray(xray)->parent.xray_text(), xray);
  EXPECT_EQ(trace_from_xray("Root=x"), nullptr);
}

}  // namespace trace_test
}  // namespace once
