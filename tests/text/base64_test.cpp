#include "text/base64.hpp"

#include <gtest/gtest.h>

#include <string>

namespace once::text {
namespace base64_test {

TEST(Base64, Rfc4648Examples) {  // RFC 4648, section 10.
  const std::string bytes = "foobar";
  const std::string texts[] = {"", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"};
  for (std::size_t i = 0; i <= bytes.size(); ++i) {
    EXPECT_EQ(encode_base64(bytes.substr(0, i)), texts[i]);
    EXPECT_EQ(decode_base64(texts[i]), bytes.substr(0, i));
  }
  EXPECT_EQ(encode_base64("\xff\xfe"), "//4=");
}

TEST(Base64, AllBytes) {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  for (const std::string& part : {bytes, bytes.substr(1), bytes.substr(2)}) {
    EXPECT_EQ(decode_base64(encode_base64(part)), part);
  }
}

TEST(Base64, OneTextForTheBytes) {
  for (const char* text : {"Zg", "Zg=", "Zg===", "Z", "Zm9", "====", "=", "Zm=v", "Zm9vZg==Zm9v", "Zm9v=", "Zg==\n",
                           " Zm9v", "Zm\n9v", "Zm-_", "Zh==", "Zm9=", "Zm9v\xC3\xA9"}) {
    EXPECT_EQ(decode_base64(text), std::nullopt) << text;
  }
}

TEST(Base64, RulesLetPass) {
  EXPECT_EQ(decode_base64("Zh==", {.zero_rest = false}), "f");
  EXPECT_EQ(decode_base64("Zg", {.padding = false}), "f");
  EXPECT_EQ(decode_base64("Zg==", {.padding = false}), "f");
  EXPECT_EQ(decode_base64("Zg=", {.padding = false}), std::nullopt);
  EXPECT_EQ(decode_base64("Zm9vY", {.padding = false}), std::nullopt);
}

TEST(Base64, SaysWhatIsWrong) {
  std::string problem;
  EXPECT_FALSE(decode_base64("aGVs\nbG8=", {}, &problem));
  EXPECT_EQ(problem, "byte 5 is no character of it");
  EXPECT_FALSE(decode_base64("aGVsbG8", {}, &problem));
  EXPECT_EQ(problem, "wrong length or padding");
  EXPECT_FALSE(decode_base64("aGVsbG9=", {}, &problem));
  EXPECT_EQ(problem, "the last character has bits that belong to no byte");
}

}  // namespace base64_test
}  // namespace once::text
