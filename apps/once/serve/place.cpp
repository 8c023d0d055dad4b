#include "serve/place.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include <once/clock.hpp>
#include <once/error.hpp>
#include <once/fingerprint.hpp>
#include <once/platform/system.hpp>

#include "output/report.hpp"
#include "output/text.hpp"
#include "platform/file.hpp"
#include "serve/claims.hpp"
#include "settings/access.hpp"
#include "stores/url.hpp"
#include "text/netstring.hpp"
#include "text/utf8.hpp"

namespace once::cli {

namespace {

constexpr std::size_t digest_digits = 32;
constexpr std::size_t key_bytes = 32;
constexpr std::size_t most_content_bytes = std::size_t{1} << 20;

bool is_absolute(std::string_view path) { return path.starts_with('/'); }

std::string failure(const std::string& what, int number) { return what + ": " + std::strerror(number); }

// ---- the folder

bool fits(const std::string& folder) {
  const std::size_t size = ServerPlace{.folder = folder, .name = std::string(digest_digits, '0')}.socket().size();
  return size < sizeof sockaddr_un{}.sun_path && text::valid_utf8(folder);  // It is printed as JSON.
}

// A directory that the system has made for this user.
bool is_own(const std::string& directory) {
  struct stat found {};
  return is_absolute(directory) && stat(directory.c_str(), &found) == 0 && S_ISDIR(found.st_mode) &&
         found.st_uid == geteuid() && (found.st_mode & (S_IWGRP | S_IWOTH)) == 0 &&
         access(directory.c_str(), W_OK | X_OK) == 0;
}

std::string folder_path() {
  const std::string user = std::to_string(geteuid());
  for (const std::string& runtime : {variable("XDG_RUNTIME_DIR"), "/run/user/" + user}) {
    const std::string folder = runtime + "/once";
    if (is_own(runtime) && fits(folder)) return folder;
  }
  for (const std::string& temporary : {variable("TMPDIR"), std::string("/tmp")}) {
    const std::string folder = temporary + "/once-" + user;
    if (!is_absolute(temporary) || !fits(folder)) continue;
    struct stat found {};
    if (stat(temporary.c_str(), &found) != 0) {
      throw Exception(ErrorKind::unavailable, failure("cannot use " + temporary, errno));
    }
    const bool is_shared = (found.st_mode & (S_IWGRP | S_IWOTH)) != 0 && (found.st_mode & S_ISVTX) == 0;
    const bool is_strange = found.st_uid != geteuid() && found.st_uid != 0;
    if (is_shared || is_strange) {
      throw Exception(ErrorKind::unavailable, "other users can rename what is in " + temporary +
                                                  ": set XDG_RUNTIME_DIR to a directory that only this user can write");
    }
    return folder;
  }
  throw Exception(ErrorKind::unavailable, "no directory for the server's socket has a short name");  // Never: /tmp.
}

// Empty only after an exception. Nobody but this user can change what it names: see folder_path().
Fd open_folder(const std::string& folder) {
  // Not make_directory(), which may put its own in the place of an empty one that another process has opened.
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    throw Exception(ErrorKind::unavailable, failure("cannot make " + folder, errno));
  }
  Fd opened(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat found {};
  if (!opened || fstat(opened.get(), &found) != 0) {
    throw Exception(ErrorKind::unavailable, failure("cannot open " + folder, errno));
  }
  std::array<char, 8> mode{};
  std::snprintf(mode.data(), mode.size(), "%04o", found.st_mode & 07777U);
  const auto refuse = [&](const std::string& why) {
    throw Exception(ErrorKind::unavailable, "the server's socket would be in " + folder + ", which " + why +
                                                ": remove it, or set XDG_RUNTIME_DIR to a directory of this user");
  };
  if (found.st_uid != geteuid()) refuse("belongs to user " + std::to_string(found.st_uid));
  if ((found.st_mode & 077) != 0) refuse("other users may enter: its mode is " + std::string(mode.data()));
  return opened;
}

// Random, and the same for all processes of the user. Written under another name first, so that it is whole.
std::string own_key(const Fd& folder, const std::string& path) {
  const auto read_it = [&]() -> std::string {
    const Fd file(openat(folder.get(), "key", O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    std::string key;
    if (file && read_all(file.get(), key_bytes, key) == 0 && key.size() == key_bytes) return key;
    return {};
  };
  std::string key = read_it();
  if (!key.empty()) return key;
  std::array<std::uint8_t, key_bytes + 8> random{};
  system_random()->fill(random);
  const std::string bytes(reinterpret_cast<const char*>(random.data()), random.size());
  const std::string fresh = "key." + to_hex(bytes.substr(key_bytes));
  const Fd file(openat(folder.get(), fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  errno = file ? ENOSPC : errno;  // A write that is cut short sets none.
  const bool is_written =
      file && write(file.get(), bytes.data(), key_bytes) == ssize_t{key_bytes} && fchmod(file.get(), 0600) == 0;
  // Whoever is first. One that is not whole, of before a crash, is replaced.
  bool is_named = is_written && linkat(folder.get(), fresh.c_str(), folder.get(), "key", 0) == 0;
  if (is_written && !is_named && errno == EEXIST && read_it().empty()) {
    is_named = renameat(folder.get(), fresh.c_str(), folder.get(), "key") == 0;
  }
  const int why = errno;
  unlinkat(folder.get(), fresh.c_str(), 0);
  key = read_it();
  if (key.empty()) throw Exception(ErrorKind::unavailable, failure("cannot make " + path + "/key", why));
  return key;
}

// ---- the name

// What a URL says of where the store is.
struct Meant {
  bool in_working_directory = false;
  bool by_environment = false;
  std::set<std::string> files;  // Whose content counts.

  void path(const std::string& path) { in_working_directory = in_working_directory || !is_absolute(path); }

  void url(const std::string& text) {
    stores::Url url(text);
    if (url.scheme() == "memory") {
      throw Exception(ErrorKind::misuse,
                      "memory: is the memory of one process, and the server would be another one: name a file, as in "
                      "--store sqlite:once.db");
    }
    if (url.scheme() == "sqlite" || url.scheme() == "file") {
      path(url.path());
    } else {
      by_environment = true;
    }
    for (const char* const name : {"ca_file", "sslcert", "sslkey", "sslrootcert", "sslcrl", "sslcrldir", "passfile"}) {
      if (const auto value = url.take_text(name); value && !value->empty()) path(*value);
    }
    if (const auto keys = url.take_text("seal")) {
      path(*keys);
      files.insert(*keys);
      by_environment = true;  // KMS may have encrypted them.
    }
    if (url.has("seal_command")) {
      throw Exception(ErrorKind::misuse,
                      "what seal_command= prints may depend on anything in this process, so a server that others "
                      "share cannot be started for it: use seal=FILE, or run `once serve --listen` as a service");
    }
    for (const char* const name : {"offload", "moves_to"}) {
      if (const auto value = url.take_text(name)) this->url(*value);
    }
  }

  // Sorted: "NAME=VALUE".
  std::set<std::string> environment() {
    static constexpr std::array<std::string_view, 7> beginnings{"PG",  "AWS_",     "KRB5", "GSS",
                                                                "SSL", "OPENSSL_", "HOME="};
    static constexpr std::array<std::string_view, 17> paths{"HOME",
                                                            "PGPASSFILE",
                                                            "PGSERVICEFILE",
                                                            "PGSYSCONFDIR",
                                                            "PGSSLCERT",
                                                            "PGSSLKEY",
                                                            "PGSSLROOTCERT",
                                                            "PGSSLCRL",
                                                            "PGSSLCRLDIR",
                                                            "SSL_CERT_FILE",
                                                            "SSL_CERT_DIR",
                                                            "OPENSSL_CONF",
                                                            "AWS_CA_BUNDLE",
                                                            "AWS_CONFIG_FILE",
                                                            "AWS_SHARED_CREDENTIALS_FILE",
                                                            "AWS_WEB_IDENTITY_TOKEN_FILE",
                                                            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"};
    std::set<std::string> found;
    if (!by_environment) return found;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string_view text(*entry);
      if (std::ranges::any_of(beginnings, [&](std::string_view word) { return text.starts_with(word); })) {
        found.emplace(text);
      }
    }
    for (const std::string_view name : paths) {
      if (const std::string value = variable(std::string(name).c_str()); !value.empty()) path(value);
    }
    const auto file = [&](const char* name, const std::string& usual) {
      const std::string named = variable(name);
      files.insert(named.empty() ? usual : named);
    };
    const std::string home = variable("HOME");
    file("PGSERVICEFILE", home + "/.pg_service.conf");
    file("AWS_CONFIG_FILE", home + "/.aws/config");
    file("AWS_SHARED_CREDENTIALS_FILE", home + "/.aws/credentials");
    if (const std::string directory = variable("PGSYSCONFDIR"); !directory.empty()) {
      files.insert(directory + "/pg_service.conf");
    }
    return found;
  }
};

std::string working_directory() {
  std::array<char, PATH_MAX> path{};
  if (getcwd(path.data(), path.size()) == nullptr) {
    throw Exception(ErrorKind::unavailable,
                    failure("cannot find the working directory, from which the store is seen", errno));
  }
  return path.data();
}

std::string link_text(const char* path) {
  std::array<char, 64> text{};
  const ssize_t size = readlink(path, text.data(), text.size());
  return size < 0 ? std::string() : std::string(text.data(), static_cast<std::size_t>(size));
}

std::string content(const std::string& path) {
  std::string bytes;
  const int number = read_file(path, most_content_bytes, bytes);
  return number == 0 ? "content " + bytes : "error " + std::to_string(number);  // The store says more of it.
}

}  // namespace

ServerPlace place_of(const std::string& store_url, const std::string& offload) {
  Meant meant;
  meant.url(store_url);
  if (is_offload_url(offload)) {
    meant.url(offload);
  } else if (!offload.empty() && offload != "none") {
    meant.path(offload);
  }
  const std::set<std::string> environment = meant.environment();
  ServerPlace place{.folder = folder_path(), .name = {}, .in_working_directory = meant.in_working_directory};
  const Fd folder = open_folder(place.folder);

  std::string all = own_key(folder, place.folder);
  const auto add = [&](std::string_view what, std::string_view value) {
    text::append_netstring(all, what);
    text::append_netstring(all, value);
  };
  add("version", ONCE_VERSION);
  add("api", std::to_string(claims_api_version));
  add("store", store_url);
  add("offload", offload);
  if (meant.in_working_directory) add("working directory", working_directory());
  for (const std::string& entry : environment) add("environment", entry);
  for (const std::string& path : meant.files) add(path, content(path));
  struct stat root {};
  if (stat("/", &root) == 0) add("root", std::to_string(root.st_dev) + ":" + std::to_string(root.st_ino));
  for (const char* const space : {"/proc/self/ns/mnt", "/proc/self/ns/net"}) add(space, link_text(space));
  place.name = to_hex(sha256(all)).substr(0, digest_digits);
  return place;
}

std::string likely_socket(const std::string& url) {
  constexpr std::string_view on_demand = "once+";
  const mode_t mask = umask(077);
  umask(mask);
  if (!url.starts_with(on_demand) || (mask & S_IRWXU) != 0) return {};
  try {
    return place_of(url.substr(on_demand.size()), {}).socket();
  } catch (const Exception&) {
    return {};
  }
}

}  // namespace once::cli
