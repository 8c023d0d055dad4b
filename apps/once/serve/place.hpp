// Where the server listens that is started on demand for a store: a Unix socket in a folder that only this user has.
#pragma once

#include <string>

namespace once::cli {

struct ServerPlace {
  std::string folder;
  std::string name;
  bool in_working_directory = false;  // Something that says which store is meant is seen from there.

  [[nodiscard]] std::string socket() const { return folder + "/" + name + ".sock"; }
  [[nodiscard]] std::string lock() const { return folder + "/" + name + ".start"; }  // Of the one that starts it.
  [[nodiscard]] std::string log() const { return folder + "/" + name + ".log"; }
};

// The folder is $XDG_RUNTIME_DIR/once, or /run/user/UID/once, if this user has them. Otherwise it is once-UID in
// $TMPDIR or /tmp. It is made if it is missing.
//
// The name covers all that decides which store is meant, by a digest: the URL; --offload; the working directory, if
// something is seen from there; the environment that libpq and AWS read, if the URL leads to them; the content of the
// seal keys' file, and of the files that say which server or account is meant; the root directory, and the namespaces
// of mounts and networks; the versions of the program and of the API. A key that is made once and kept in the folder
// goes into the digest, so that nobody can guess a password by a name that was logged.
//
// The umask must leave the owner his permissions.
// Throws Exception(misuse) for a store that no other process can name in this way, and unavailable if the folder cannot
// be made, or others may use it.
ServerPlace place_of(const std::string& store_url, const std::string& offload);

// The socket of the server that a URL of once+STORE means, to look there before a program is started that finds it.
// Empty for other URLs, and if anything is in the way: that program says what.
std::string likely_socket(const std::string& url);

}  // namespace once::cli
