#include "aws/shared_config.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <once/error.hpp>

#include "platform/file.hpp"
#include "text/ascii.hpp"

namespace once::aws {

namespace {

constexpr std::size_t max_file_bytes = std::size_t{1} << 20U;
constexpr std::string_view blanks = " \t\r\v\f";

// A value ends before white space followed by '#' or ';'.
std::string_view without_comment(std::string_view value) noexcept {
  for (std::size_t i = 0; i < value.size(); ++i) {
    const bool mark = value[i] == '#' || value[i] == ';';
    if (mark && (i == 0 || blanks.find(value[i - 1]) != std::string_view::npos))
      return text::trim(value.substr(0, i), blanks);
  }
  return text::trim(value, blanks);
}

std::string_view without_quotes(std::string_view name) noexcept {
  const bool quoted = name.size() >= 2 && name.front() == name.back() && (name.front() == '"' || name.front() == '\'');
  return quoted ? name.substr(1, name.size() - 2) : name;
}

using Sections = std::map<std::string, Section, std::less<>>;  // By the text between the brackets.

// Throws Exception(misuse) with the line's number.
Sections parse_file(std::string_view text, std::string_view file) {
  Sections sections;
  Section* section = nullptr;
  std::string* value = nullptr;  // Of the setting that further indented lines belong to.
  std::string name;
  std::size_t indent = 0;
  std::size_t line_number = 0;
  const auto refuse = [&](std::string_view what) {
    throw Exception(ErrorKind::misuse, std::string(file) + ", line " + std::to_string(line_number) + ": " +
                                           std::string(what) + ". Correct the line, or see what `aws configure list` " +
                                           "makes of the file");
  };

  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);  // The byte order mark of some editors.
  while (!text.empty()) {
    ++line_number;
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const std::string_view content = text::trim(line, blanks);
    if (content.empty() || content.front() == '#' || content.front() == ';') continue;
    const std::size_t line_indent = line.find_first_not_of(blanks);

    if (line_indent > indent && value != nullptr) {
      if (value->empty()) {  // A setting that is made of settings.
        const std::size_t equals = content.find('=');
        if (equals == std::string_view::npos) refuse("a nested setting has no '='");
        const std::string nested = text::lower(text::trim(content.substr(0, equals), blanks));
        (*section)[name + '.' + nested] = without_comment(content.substr(equals + 1));
      } else {
        value->append("\n").append(content);
      }
      continue;
    }

    if (content.front() == '[') {
      const std::size_t close = content.find(']');
      if (close == std::string_view::npos) refuse("the ']' after a section's name is missing");
      section = &sections[std::string(text::trim(content.substr(1, close - 1), blanks))];
      value = nullptr;
      indent = 0;
      continue;
    }
    const std::size_t equals = content.find('=');
    if (equals == std::string_view::npos) refuse("neither [section], nor setting = value, nor a comment");
    if (section == nullptr) refuse("a setting before the first [section]");
    name = text::lower(text::trim(content.substr(0, equals), blanks));
    if (name.empty()) refuse("a setting without a name");
    value = &(*section)[name];
    *value = without_comment(content.substr(equals + 1));
    indent = line_indent;
  }
  return sections;
}

// Later settings win.
void merge(Section& into, const Section& from) {
  for (const auto& [name, value] : from) into[name] = value;
}

struct Place {
  std::string path;        // Empty: nowhere.
  bool asked_for = false;  // Named by a variable.
};

Place find_file(const Environment& environment, const std::string& variable, std::string_view usual) {
  const std::string home = environment("HOME").value_or("");
  std::string path = environment(variable).value_or("");
  const bool asked_for = !path.empty();
  if (!asked_for) path = "~/.aws/" + std::string(usual);
  if (path.starts_with("~/")) path = home.empty() ? "" : home + path.substr(1);
  return {std::move(path), asked_for};
}

std::string text_of(const Place& place) {
  std::string text;
  if (place.path.empty()) return text;
  const int error = read_file(place.path, max_file_bytes, text);
  // A service whose HOME belongs to another user has no files. But a file named by a variable must be readable.
  const bool missing = error == ENOENT || error == ENOTDIR || (error == EACCES && !place.asked_for);
  if (error == 0 || missing) return text;
  throw Exception(ErrorKind::misuse, "cannot read " + place.path + ": " +
                                         (error == EFBIG ? "it is larger than 1 MiB, so it is hardly a configuration"
                                                         : std::strerror(error)));
}

}  // namespace

SharedConfig SharedConfig::read(const Environment& environment) {
  const Place config = find_file(environment, "AWS_CONFIG_FILE", "config");
  const Place credentials = find_file(environment, "AWS_SHARED_CREDENTIALS_FILE", "credentials");
  if (config.path.empty() && credentials.path.empty()) {
    SharedConfig nothing;
    nothing.places_ = "~/.aws (HOME is not set)";
    return nothing;
  }
  return parse(text_of(config), text_of(credentials), config.path, credentials.path);
}

SharedConfig SharedConfig::parse(std::string_view config, std::string_view credentials, std::string_view config_name,
                                 std::string_view credentials_name) {
  SharedConfig out;
  out.places_ = std::string(config_name) + " and " + std::string(credentials_name);
  Sections in_config = parse_file(config, config_name);
  for (const auto& [title, section] : in_config) {
    const std::size_t blank = title.find_first_of(blanks);
    if (title == "default" || blank == std::string::npos) continue;  // Other one-word sections are ignored.
    const std::string_view kind = std::string_view(title).substr(0, blank);
    const std::string name(without_quotes(text::trim(std::string_view(title).substr(blank), blanks)));
    if (kind == "profile") merge(out.profiles_[name], section);
    if (kind == "services") merge(out.services_[name], section);
  }
  // [profile default] overrides [default].
  if (const auto found = in_config.find("default"); found != in_config.end()) {
    out.profiles_.try_emplace("default", std::move(found->second));
  }
  for (const auto& [title, section] : parse_file(credentials, credentials_name)) merge(out.profiles_[title], section);
  return out;
}

const Section* SharedConfig::profile(std::string_view name) const noexcept {
  const auto found = profiles_.find(name);
  return found == profiles_.end() ? nullptr : &found->second;
}

std::string SharedConfig::get(std::string_view profile_name, std::string_view setting) const {
  const Section* const section = profile(profile_name);
  if (section == nullptr) return {};
  const auto found = section->find(setting);
  return found == section->end() ? std::string{} : found->second;
}

std::string SharedConfig::endpoint_url(std::string_view profile, std::string_view service) const {
  const auto services = services_.find(get(profile, "services"));
  if (services != services_.end()) {
    const auto found = services->second.find(std::string(service) + ".endpoint_url");
    if (found != services->second.end() && !found->second.empty()) return found->second;
  }
  return get(profile, "endpoint_url");
}

std::string profile_name(const Environment& environment) {
  const std::string named = environment("AWS_PROFILE").value_or("");
  return named.empty() ? "default" : named;
}

}  // namespace once::aws
