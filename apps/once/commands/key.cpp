// once key: shows an event's key and fingerprint, and the exact text that was hashed.
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include <once/error.hpp>
#include <once/keys/key_deriver.hpp>

#include "commands/commands.hpp"
#include "output/exit_codes.hpp"
#include "output/report.hpp"
#include "output/text.hpp"
#include "settings/read_input.hpp"
#include "text/utf8.hpp"

namespace once::cli {

namespace {

struct KeyCommand {
  keys::Recipe recipe;
  std::string dialect = "native";
  std::string file;
  bool json = false;
};

std::string fingerprint_text(const keys::Derived& derived, keys::Dialect dialect) {
  return derived.fingerprint.empty() ? "" : keys::digest_text(dialect, derived.fingerprint.bytes());
}

// Why the event has no key, in the words in which a program that requires one refuses it.
std::string why_missing(keys::Recipe recipe, std::string_view event) {
  recipe.require_key = true;
  try {
    static_cast<void>(keys::KeyDeriver(std::move(recipe)).derive(event));
  } catch (const Exception& error) {
    return escaped(error.what());
  }
  return "nothing was selected";  // In a dialect that does not call this an error.
}

int show_key(KeyCommand options) {
  const auto dialect = keys::dialect_from(options.dialect);
  if (!dialect) {
    throw Exception(ErrorKind::misuse, "unknown dialect '" + escaped(options.dialect) +
                                           "': use native, powertools-python, powertools-typescript, powertools-java "
                                           "or powertools-dotnet");
  }
  if (!text::valid_utf8(options.recipe.scope)) throw Exception(ErrorKind::misuse, "--scope is not UTF-8");
  options.recipe.dialect = *dialect;
  const keys::KeyDeriver deriver(options.recipe);
  const std::string event = read_input(options.file, keys::max_event_bytes);

  keys::Derived derived;
  try {
    derived = deriver.derive(event);
  } catch (const Exception& error) {
    if (error.kind() != ErrorKind::misuse) throw;
    say(error.what());
    return exit_bad_event;
  }

  const std::string fingerprint = fingerprint_text(derived, *dialect);
  if (options.json) {
    nlohmann::ordered_json json{{"key", nullptr}, {"fingerprint", nullptr}, {"text", nullptr}};
    if (derived.key) {
      json["key"] = derived.key->stored();
      json["fingerprint"] = fingerprint;
      json["text"] = derived.key_text;
      if (!options.recipe.fingerprint.empty()) json["fingerprint_text"] = derived.fingerprint_text;
    }
    return print(json_text(json));
  }
  if (!derived.key) return print("key          none: " + why_missing(options.recipe, event) + "\n");
  std::string text = "key          " + escaped(derived.key->stored()) + "\n" +  //
                     "text         " + escaped(derived.key_text) + "\n";
  if (options.recipe.fingerprint.empty()) {
    text += "fingerprint  none: not checked\n";
  } else {
    text += "fingerprint  " + fingerprint + "\n" +  //
            "text         " + escaped(derived.fingerprint_text) + "\n";
  }
  return print(text);
}

}  // namespace

void add_key(CLI::App& app, Invocation& invocation) {
  const auto options = std::make_shared<KeyCommand>();
  CLI::App* const command = app.add_subcommand("key", "Show the key and fingerprint that an event gets");
  command->add_option("--scope", options->recipe.scope,
                      "The key's namespace; in a dialect, everything left of '#', as in my-func.app.handler");
  command->add_option("--expression", options->recipe.expression,
                      "JMESPath that selects the key (default: the whole event)");
  command->add_option("--fingerprint", options->recipe.fingerprint,
                      "JMESPath that selects what a retry must repeat (default: no fingerprint)");
  command->add_option(
      "--hash", options->recipe.hash,
      "sha256 or md5; a dialect also takes the hashes of its library (default: sha256; md5 in a dialect)");
  command->add_option("--dialect", options->dialect,
                      "native, powertools-python, powertools-typescript, powertools-java or powertools-dotnet");
  command->add_flag("--require-key", options->recipe.require_key,
                    "Fail with exit code 65 if the expression or --fingerprint selects nothing");
  command->add_flag("--allow-null-parts", options->recipe.allow_null_parts,
                    "Accept a null or empty part of a key that the expression puts together, as in [tenant, id]");
  command->add_flag("--json", options->json, "Write JSON");
  command->add_option("FILE", options->file, "The event, a JSON text; - is standard input")->required();
  command->footer(
      "Examples:\n"
      "  once key --scope payments --expression 'powertools_json(body).order_id' event.json\n"
      "  echo '{\"a\":1,\"b\":\"x\"}' | once key --dialect powertools-python --scope my-func.app.handler --json -\n"
      "\n"
      "--json writes {\"key\", \"fingerprint\", \"text\"}; text is what was hashed for the key. All three are null if\n"
      "the event has no key. Without --fingerprint, fingerprint is \"\"; with it, fingerprint_text is what was "
      "hashed.\n"
      "\n"
      "Exit codes: 0 done, even if the event has no key; 64 wrong flags or expression; 65 the event cannot be read,\n"
      "the expression fails on it, or with --require-key it has no key.");
  command->callback([options, &invocation] { invocation.action = [options] { return show_key(*options); }; });
}

}  // namespace once::cli
