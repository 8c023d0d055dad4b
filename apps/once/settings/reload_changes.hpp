// What a reload of `once proxy` changes, for the line that reports it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "settings/proxy_settings.hpp"

namespace once::cli {

// The files of certificates, tokens and keys that settings name: the SHA-256 of what they hold, by setting and path.
// Empty: it cannot be read, or is no regular file.
struct NamedFile {
  std::string setting;  // "tls-cert"
  std::string path;

  friend auto operator<=>(const NamedFile&, const NamedFile&) = default;
};
using FileDigests = std::map<NamedFile, std::string>;
FileDigests digests_of_files(const Given& given, const std::vector<GivenRoute>& routes);

struct ReloadInputs {
  Given given;
  std::vector<GivenRoute> routes;
  FileDigests files;
};

// "certificates (tls-cert, tls-key), tokens (admin-token-file), routes, settings (wait)". Empty: nothing. Without what
// needs a restart.
std::string changes(const ReloadInputs& before, const ReloadInputs& after);

}  // namespace once::cli
