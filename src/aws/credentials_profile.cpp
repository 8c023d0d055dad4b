// Credentials of a profile in the shared config and credentials files.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <once/error.hpp>

#include "aws/credentials_search.hpp"

namespace once::aws {

namespace {

[[noreturn]] void refuse(const std::string& what) { throw Exception(ErrorKind::misuse, what); }

class Profiles {
 public:
  Profiles(Search& search, SharedConfig config) : search_(search), config_(std::move(config)) {}

  // Empty: the profile has none. Throws Exception.
  std::optional<Credentials> resolve(const std::string& name) {
    const std::string place = "profile " + name;
    path_.push_back(name);
    if (!get(name, "role_arn").empty()) return role(name, place);
    return own(name, place);
  }

 private:
  std::string get(const std::string& profile, std::string_view setting) const { return config_.get(profile, setting); }

  // The profile's own credentials, without a role to assume.
  std::optional<Credentials> own(const std::string& name, const std::string& place) {
    Credentials found;
    found.access_key_id = get(name, "aws_access_key_id");
    found.secret_access_key = get(name, "aws_secret_access_key");
    found.session_token = get(name, "aws_session_token");
    found.source = place + " in " + config_.places();
    if (found.access_key_id.empty() != found.secret_access_key.empty()) {
      refuse(found.source + " has only one of aws_access_key_id and aws_secret_access_key: give both, or neither");
    }
    if (!found.access_key_id.empty()) return checked(std::move(found));
    if (const std::string command = get(name, "credential_process"); !command.empty()) {
      return from_process(search_, command, "credential_process of " + place);
    }
    for (const char* setting : {"sso_session", "sso_start_url", "sso_account_id", "login_session"}) {
      if (get(name, setting).empty()) continue;
      refuse(
          place + " signs in through the browser (" + setting +
          "), which is not supported here. Run `aws sso login --profile " + name +
          "` (or `aws login`), then `eval \"$(aws configure export-credentials --profile " + name +
          " --format env)\"`; or let a profile have credential_process = aws configure export-credentials --profile " +
          name);
    }
    return {};
  }

  std::optional<Credentials> role(const std::string& name, const std::string& place) {
    const std::string source = get(name, "source_profile");
    const std::string kind = get(name, "credential_source");
    const std::string token_file = get(name, "web_identity_token_file");
    const int ways = (source.empty() ? 0 : 1) + (kind.empty() ? 0 : 1) + (token_file.empty() ? 0 : 1);
    if (ways != 1) {
      refuse(place +
             " has a role_arn: give exactly one of source_profile, credential_source and "
             "web_identity_token_file with it");
    }
    Role role;
    role.arn = get(name, "role_arn");
    role.session_name = get(name, "role_session_name");
    role.external_id = get(name, "external_id");
    role.duration_seconds = get(name, "duration_seconds");
    const std::string as = place + " as " + role.arn;
    if (!token_file.empty()) return assume_role_with_token(search_, role, token_file, name, as);
    if (!get(name, "mfa_serial").empty()) {
      refuse(place +
             " has an mfa_serial, and nobody can be asked for a code here. Run `eval \"$(aws configure "
             "export-credentials --profile " +
             name + " --format env)\"`");
    }
    return assume_role(search_, role, kind.empty() ? from_source(name, source) : from_kind(place, kind), name, as);
  }

  Credentials from_source(const std::string& name, const std::string& source) {
    std::optional<Credentials> found;
    if (source == name) {  // Its own keys, for its own role.
      found = own(name, "profile " + name);
    } else {
      if (std::find(path_.begin(), path_.end(), source) != path_.end()) {
        std::string way;
        for (const std::string& each : path_) way += each + " -> ";
        refuse("the source_profile settings go round in a circle: " + way + source);
      }
      if (config_.profile(source) == nullptr) {
        refuse("profile " + name + " has source_profile = " + source + ", which is not in " + config_.places());
      }
      found = resolve(source);
    }
    if (!found) refuse("profile " + source + ", the source_profile of " + name + ", has no credentials");
    return std::move(*found);
  }

  Credentials from_kind(const std::string& place, const std::string& kind) {
    std::optional<Credentials> found;
    if (kind == "Environment") {
      found.emplace();
      found->access_key_id = search_.variable("AWS_ACCESS_KEY_ID");
      found->secret_access_key = search_.variable("AWS_SECRET_ACCESS_KEY");
      found->session_token = search_.variable("AWS_SESSION_TOKEN");
      found->source = "environment";
      if (found->access_key_id.empty() || found->secret_access_key.empty()) {
        refuse(place +
               " has credential_source = Environment, but AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set");
      }
      return checked(std::move(*found));
    }
    if (kind == "EcsContainer") {
      found = from_container(search_);
    } else if (kind == "Ec2InstanceMetadata") {
      found = from_instance(search_);
    } else {
      refuse(place + " has an unknown credential_source: use Environment, EcsContainer or Ec2InstanceMetadata");
    }
    if (!found) {
      throw Exception(ErrorKind::unavailable,
                      place + " has credential_source = " + kind + ", but there are none: " + search_.tried.back());
    }
    return std::move(*found);
  }

  Search& search_;
  const SharedConfig config_;
  std::vector<std::string> path_;  // The chain of profiles.
};

}  // namespace

std::optional<Credentials> from_profile(Search& search) {
  const SharedConfig config = SharedConfig::read(search.options.environment);
  const bool named = !search.options.profile.empty() || !search.variable("AWS_PROFILE").empty();
  const std::string name =
      search.options.profile.empty() ? profile_name(search.options.environment) : search.options.profile;
  if (config.profile(name) == nullptr) {
    if (named) {
      refuse("there is no profile " + name + " in " + config.places() +
             (search.options.profile.empty() ? ": correct AWS_PROFILE, or unset it" : ": correct its name"));
    }
    search.tried.push_back("profile " + name + " (not in " + config.places() + ")");
    return {};
  }
  auto found = Profiles(search, config).resolve(name);
  if (!found) search.tried.push_back("profile " + name + " (has no credentials in " + config.places() + ")");
  return found;
}

}  // namespace once::aws
