#include "output/command_tree.hpp"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "output/text.hpp"

namespace once::cli {

namespace {

using Json = nlohmann::ordered_json;

// "TEXT:{hold,takeover}" has a type, and the choices that its validator allows.
Json option_json(const CLI::Option& option) {
  Json json;
  json["names"] = Json::array();
  for (const std::string& name : option.get_snames()) json["names"].push_back("-" + name);
  for (const std::string& name : option.get_lnames()) json["names"].push_back("--" + name);
  const std::string type = option.get_type_name();
  const auto colon = type.find(':');
  json["value"] = option.get_expected_max() == 0 ? Json(nullptr) : Json(type.substr(0, colon));
  json["choices"] = Json::array();
  if (const auto set = type.find(":{"); set != std::string::npos && type.ends_with('}')) {
    for (const std::string& choice : split(type.substr(set + 2, type.size() - set - 3), ',')) {
      json["choices"].push_back(choice);
    }
  }
  json["default"] = option.get_default_str();
  json["repeatable"] = option.get_expected_max() > 1;
  json["description"] = option.get_description();
  return json;
}

}  // namespace

Json command_tree(const CLI::App& command) {
  Json json{{"name", command.get_name()},
            {"description", command.get_description()},
            {"footer", command.get_footer()},
            {"options", Json::array()},
            {"commands", Json::array()}};
  for (const CLI::Option* const option : command.get_options()) json["options"].push_back(option_json(*option));
  for (const CLI::App* const below : command.get_subcommands({})) json["commands"].push_back(command_tree(*below));
  return json;
}

}  // namespace once::cli
