// The files that AWS's tools share, ~/.aws/config and ~/.aws/credentials:
// https://docs.aws.amazon.com/sdkref/latest/guide/file-format.html
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include <once/aws/credentials.hpp>

namespace once::aws {

// Settings by name, in lower case. A nested one has both names: "s3.max_concurrent_requests".
using Section = std::map<std::string, std::string, std::less<>>;

// Both files, merged: the credentials file overrides the config file, a later line an earlier one.
class SharedConfig {
 public:
  // Reads AWS_CONFIG_FILE (or ~/.aws/config) and AWS_SHARED_CREDENTIALS_FILE (or ~/.aws/credentials); "~" is HOME. A
  // missing file counts as empty. Blocks. Throws Exception(misuse) for a file that is unreadable, larger than 1 MiB or
  // malformed, with the place, but without its contents, which may be secret.
  static SharedConfig read(const Environment& environment);

  // The same from the files' texts. The names are for the errors.
  static SharedConfig parse(std::string_view config, std::string_view credentials,
                            std::string_view config_name = "config", std::string_view credentials_name = "credentials");

  // Null if neither file has it.
  [[nodiscard]] const Section* profile(std::string_view name) const noexcept;

  // A setting of a profile, or empty.
  [[nodiscard]] std::string get(std::string_view profile, std::string_view setting) const;

  // A profile's endpoint of a service ("dynamodb", "s3", "sts"): `endpoint_url` of that service in the section that its
  // `services` names, otherwise the profile's own. Empty: none.
  [[nodiscard]] std::string endpoint_url(std::string_view profile, std::string_view service) const;

  // For people: "~/.aws/config and ~/.aws/credentials", the paths that were tried.
  [[nodiscard]] const std::string& places() const noexcept { return places_; }

 private:
  std::map<std::string, Section, std::less<>> profiles_;
  std::map<std::string, Section, std::less<>> services_;
  std::string places_;
};

// The profile to use: AWS_PROFILE, or "default".
std::string profile_name(const Environment& environment);

}  // namespace once::aws
