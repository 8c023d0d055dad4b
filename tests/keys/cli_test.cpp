// `once key` as a program: its JSON, its exit codes, and every recorded id by way of the command line.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace cli_test {

using nlohmann::json;

struct Outcome {
  int code = -1;
  std::string out;
  std::string err;
};

class KeyCommand : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "once-key-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    for (const char* name : {"/event", "/err"}) std::remove((folder_ + name).c_str());
    rmdir(folder_.c_str());
  }

  static std::string shell_word(const std::string& text) {
    std::string out = "'";
    for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return out + "'";
  }

  Outcome run(const std::vector<std::string>& arguments, const std::string& event) {
    std::ofstream(folder_ + "/event", std::ios::binary) << event;
    std::string command = ONCE_PROGRAM " key";
    for (const std::string& argument : arguments) command += " " + shell_word(argument);
    command += " - <" + shell_word(folder_ + "/event") + " 2>" + shell_word(folder_ + "/err");
    Outcome outcome;
    std::FILE* const pipe = popen(command.c_str(), "r");
    if (pipe == nullptr) return outcome;
    std::array<char, 4096> part{};
    std::size_t length = 0;
    while ((length = std::fread(part.data(), 1, part.size(), pipe)) > 0) outcome.out.append(part.data(), length);
    const int status = pclose(pipe);
    outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    std::ifstream err(folder_ + "/err");
    std::getline(err, outcome.err, '\0');
    return outcome;
  }

  std::string folder_;
};

TEST_F(KeyCommand, WritesKeyFingerprintAndText) {
  const Outcome native =
      run({"--scope", "pay", "--expression", "id", "--fingerprint", "n", "--json"}, R"({"id":"o-1","n":5})");
  EXPECT_EQ(native.code, 0) << native.err;
  const json out = json::parse(native.out);
  EXPECT_EQ(out["key"], "pay#00d5c8b71f851bbe47626a189b20fb19c11753e244bb658095c370ba3798f85c");
  EXPECT_EQ(out["fingerprint"], "ef2d127de37b942baad06145e54b0c619a1f22327b2ebbcfbec78f5564afe39d");
  EXPECT_EQ(out["text"], "\"o-1\"");
  EXPECT_EQ(out["fingerprint_text"], "5");
  const Outcome people =
      run({"--dialect", "powertools-python", "--scope", "my-func.app.handler"}, R"({"a":1,"b":"x"})");
  EXPECT_EQ(people.code, 0);
  EXPECT_NE(people.out.find("my-func.app.handler#4f5f4713d180fb0cb1041f7caf4faaaa"), std::string::npos) << people.out;
}

TEST_F(KeyCommand, NoKeyIsNull) {
  const Outcome none = run({"--expression", "id", "--fingerprint", "@", "--json"}, "{}");
  EXPECT_EQ(none.code, 0) << none.err;
  EXPECT_EQ(json::parse(none.out), (json{{"key", nullptr}, {"fingerprint", nullptr}, {"text", nullptr}}));
}

TEST_F(KeyCommand, RequiredKeyThatIsMissingIsAnError) {
  const Outcome none = run({"--expression", "id", "--require-key", "--json"}, "{}");
  EXPECT_EQ(none.code, 65);
  EXPECT_TRUE(none.out.empty()) << none.out;
  EXPECT_NE(none.err.find("no key"), std::string::npos) << none.err;
  EXPECT_EQ(run({"--expression", "id", "--require-key"}, R"({"id":"x"})").code, 0);
}

TEST_F(KeyCommand, ErrorsHaveTheirCodes) {
  for (const std::string event : {"", "{", R"({"a":1,"a":2})", "9007199254740993", "\"\xFF\"", "[1] 2"}) {
    const Outcome bad = run({"--json"}, event);
    EXPECT_EQ(bad.code, 65) << event;
    EXPECT_TRUE(bad.out.empty() && !bad.err.empty()) << event;
  }
  EXPECT_EQ(run({"--expression", "powertools_json(body)"}, "{}").code, 65);
  for (const std::vector<std::string>& wrong : std::vector<std::vector<std::string>>{
           {"--expression", "a.["}, {"--dialect", "ruby"}, {"--hash", "crc"}, {"--nope"}, {"--scope", "\xFF"}}) {
    const Outcome bad = run(wrong, "{}");
    EXPECT_EQ(bad.code, 64) << wrong.back();
    EXPECT_TRUE(bad.out.empty() && !bad.err.empty()) << wrong.back();
  }
}

TEST_F(KeyCommand, RecordedIds) {
  std::ifstream file(ONCE_KEYS_DATA "/powertools_keys.json");
  const json vectors = json::parse(file);
  ASSERT_EQ(vectors.size(), 285U);
  for (const json& vector : vectors) {
    SCOPED_TRACE(vector.at("lang").get<std::string>() + " " + vector.at("name").get<std::string>());
    const auto text = [&](const char* name) {
      return vector.at(name).is_null() ? std::string() : vector.at(name).get<std::string>();
    };
    const std::string id = text("id");
    const auto hash_sign = id.find('#');
    std::vector<std::string> arguments{"--dialect",     "powertools-" + text("lang"),
                                       "--scope",       id.substr(0, hash_sign == std::string::npos ? 0 : hash_sign),
                                       "--hash",        text("hash_function"),
                                       "--expression",  text("event_key_jmespath"),
                                       "--fingerprint", text("payload_validation_jmespath"),
                                       "--json"};
    if (vector.at("throw_on_no_key").get<bool>()) arguments.emplace_back("--require-key");
    const Outcome outcome = run(arguments, text("event_text"));
    if (id.empty()) {
      EXPECT_TRUE((outcome.code == 0 && json::parse(outcome.out)["key"].is_null() && !vector.contains("error")) ||
                  outcome.code == 64 || outcome.code == 65)
          << outcome.code << outcome.out;
      continue;
    }
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const json out = json::parse(outcome.out);
    EXPECT_EQ(out["key"], hash_sign == std::string::npos ? "#" + id : id);
    EXPECT_EQ(out["fingerprint"], text("validation_hash"));
    const json hashed = vector.value("hashed_text", json());
    EXPECT_TRUE(hashed.is_null() || out["text"] == hashed) << out["text"];
  }
}

}  // namespace cli_test
