// Every recorded id and validation hash of the four Powertools libraries, derived again.
//
// data/powertools_keys.json: recorded from the libraries themselves. data/more_*.json: further ones from the same
// libraries and from the functions they use (tests/keys/data/README.md says how).
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <once/error.hpp>
#include <once/keys/key_deriver.hpp>
#include <optional>
#include <string>
#include <vector>

namespace once::keys {
namespace vectors_test {

using nlohmann::json;

json load(const std::string& name) {
  std::ifstream file(std::string(ONCE_KEYS_DATA) + "/" + name);
  EXPECT_TRUE(file) << name;
  return json::parse(file);
}

std::string from_hex(const std::string& hex) {
  std::string out;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    out += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return out;
}

// A field that is text, or null, or given as <name>_hex.
std::optional<std::string> text(const json& vector, const std::string& name) {
  if (const auto hex = vector.find(name + "_hex"); hex != vector.end()) return from_hex(hex->get<std::string>());
  const auto found = vector.find(name);
  if (found == vector.end() || found->is_null()) return std::nullopt;
  return found->get<std::string>();
}

Recipe recipe_of(const json& vector) {
  const Dialect dialect = dialect_from("powertools-" + vector.at("lang").get<std::string>()).value();
  std::string scope = text(vector, "function_name").value_or("scope");
  if (const auto prefix = text(vector, "key_prefix")) {
    scope = powertools_scope(dialect, std::nullopt, {}, *prefix);
  }
  return {.scope = scope,
          .expression = text(vector, "event_key_jmespath").value_or(""),
          .fingerprint = text(vector, "payload_validation_jmespath").value_or(""),
          .hash = text(vector, "hash_function").value_or(""),
          .dialect = dialect,
          .require_key = vector.value("throw_on_no_key", false)};
}

void check(const json& vector) {
  SCOPED_TRACE(vector.at("lang").get<std::string>() + " " + vector.at("name").get<std::string>());
  const Recipe recipe = recipe_of(vector);
  const auto id = text(vector, "id");
  const std::string event = text(vector, "event_text").value();
  const auto derive = [&] { return KeyDeriver(recipe).derive(event); };

  if (!id) {
    // The library raised, or ran the function without protection. Of the latter we allow only what selects nothing:
    // where an expression failed there is an error here (the vectors do not tell the two apart).
    try {
      const Derived derived = derive();
      EXPECT_FALSE(derived.key) << derived.key->stored();
      EXPECT_FALSE(vector.contains("error")) << "expected an error";
    } catch (const Exception& error) {
      EXPECT_EQ(error.kind(), ErrorKind::misuse) << error.what();
    }
    return;
  }

  Derived derived;
  ASSERT_NO_THROW(derived = derive()) << event;
  ASSERT_TRUE(derived.key);
  // Some were recorded without what stands left of '#'.
  const bool bare = id->find('#') == std::string::npos;
  EXPECT_EQ(bare ? std::string(derived.key->name()) : derived.key->stored(), *id);
  if (const auto hashed = text(vector, "hashed_text")) {
    EXPECT_EQ(derived.key_text, *hashed);
  }
  const std::string validation =
      derived.fingerprint.empty() ? "" : digest_text(recipe.dialect, derived.fingerprint.bytes());
  EXPECT_EQ(validation, text(vector, "validation_hash").value_or(""));
  if (const auto hashed = text(vector, "validation_hashed_text")) {
    EXPECT_EQ(derived.fingerprint_text, *hashed);
  }
}

void check_file(const std::string& name, std::size_t count) {
  const json vectors = load(name);
  ASSERT_EQ(vectors.size(), count) << "the file has changed: change the count too";
  for (const json& vector : vectors) check(vector);
}

TEST(KeyVectors, RecordedFromThePowertoolsLibraries) { check_file("powertools_keys.json", 285); }
TEST(KeyVectors, FixturesPython) { check_file("fixtures_python.json", 179); }
TEST(KeyVectors, DrawnAtRandomPython) { check_file("more_python.json", 150); }
TEST(KeyVectors, DrawnAtRandomTypescript) { check_file("more_typescript.json", 150); }
TEST(KeyVectors, DrawnAtRandomJava) { check_file("more_java.json", 100); }

}  // namespace vectors_test
}  // namespace once::keys
