#include "settings/access.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <once/error.hpp>
#include <once/offload/directory.hpp>
#include <once/operate.hpp>
#include <once/platform/system.hpp>
#include <once/stores/moving.hpp>
#include <once/stores/open.hpp>
#if ONCE_POSTGRESQL
#include <once/stores/postgresql_schema.hpp>
#endif
#include <once/stores/sqlite.hpp>

#include "output/report.hpp"
#include "output/text.hpp"
#include "platform/directory.hpp"
#include "stores/url.hpp"
#if ONCE_AWS
#include "stores/open_aws.hpp"
#include "stores/open_server.hpp"
#endif
#if ONCE_POSTGRESQL
#include "stores/open_postgresql.hpp"
#endif

namespace once::cli {

namespace {

// A directory of the environment, with one slash at its beginning and none at its end, unless it is "/".
std::string directory_in(const char* name) {
  std::string path = variable(name);
  const bool is_absolute = path.starts_with('/');
  while (is_absolute && path.ends_with('/')) path.pop_back();
  return is_absolute ? "/" + path.substr(std::min(path.find_first_not_of('/'), path.size())) : path;
}

// A directory that is created at the first put().
class LateDirectory final : public Offload {
 public:
  // Made by root, it gets the owner of the file `model`, whose results it holds. Empty: of its parent directory.
  LateDirectory(std::string directory, std::string model)
      : directory_(std::move(directory)), model_(std::move(model)) {}

  void put(std::string hint, std::string bytes, Callback<void(OffloadAnswer)> done) override {
    if (auto error = open()) return done({{}, std::move(error)});
    inner_->put(std::move(hint), std::move(bytes), std::move(done));
  }
  void get(std::string location, Callback<void(OffloadAnswer)> done) override {
    if (missing()) {
      return done({{}, Error{ErrorKind::corrupt, "the result was kept in " + directory_ + ", which no longer exists"}});
    }
    if (auto error = open()) return done({{}, std::move(error)});
    inner_->get(std::move(location), std::move(done));
  }
  void remove(std::string location, Callback<void(OffloadAnswer)> done) override {
    if (missing()) return done({});
    if (auto error = open()) return done({{}, std::move(error)});
    inner_->remove(std::move(location), std::move(done));
  }

 private:
  [[nodiscard]] bool missing() const {
    struct stat kind {};
    return stat(directory_.c_str(), &kind) != 0 && errno == ENOENT;
  }
  std::optional<Error> open() {
    const std::lock_guard lock(mutex_);
    if (inner_) return std::nullopt;
    struct stat model {};
    const bool adopts = missing() && !model_.empty() && geteuid() == 0 && stat(model_.c_str(), &model) == 0;
    if (adopts && !make_directory(directory_, 0700, model)) {
      return Error{ErrorKind::unavailable,
                   "cannot make " + directory_ + " for the owner of " + model_ + ": " + std::strerror(errno)};
    }
    try {
      inner_ = make_directory_offload(directory_);
    } catch (const Exception& error) {
      return error.error();
    }
    return std::nullopt;
  }

  const std::string directory_;
  const std::string model_;
  std::mutex mutex_;
  std::shared_ptr<Offload> inner_;
};

// Never destroyed: the engine's last completion may still run on one of their threads, and must not destroy them there.
// Acknowledged writes are durable, and main() ends the process at once.
void keep_for_ever(const StoreAccess& access) {
  static auto& kept = *new std::vector<StoreAccess>;
  kept.push_back(access);
}

// Unless the URL has it.
void add_parameter(std::string& url, const std::string& name, const std::string& value) {
  const stores::Url parsed(url);
  if (parsed.has(name)) return;
  const std::size_t path_end = std::min(url.find('?'), url.size());
  // In front: at the end it could be one of a URL in a parameter.
  url.insert(path_end, "?" + name + "=" + value);
  if (path_end + name.size() + value.size() + 2 < url.size()) url[path_end + name.size() + value.size() + 2] = '&';
}

// `asked`: --offload. `of_store`: from the store's URL.
void choose_offload(StoreAccess& access, const std::string& asked, std::shared_ptr<Offload> of_store) {
  if (is_offload_url(asked)) {
    access.offload_name = asked;
    access.offload = open_offload(asked);
    return;
  }
  if (asked.empty() && of_store) {
    access.offload_name = "what the store's URL says";
    access.offload = std::move(of_store);
    return;
  }
  access.offload_directory = asked;
  std::string model;
  if (asked.empty()) {
    if (stores::Url(access.url).has("moves_to")) {
      if (!access.url.starts_with("sqlite:")) return;
      throw Exception(ErrorKind::misuse,
                      "results that are too large for a record lie beside the first store, and stay there. With "
                      "moves_to=, say where: --offload FILE.results, as it was, or none; or offload= in the URL");
    }
    const auto status = stores::sqlite_status(*access.store);
    if (!status) return;
    access.offload_directory = status->path + ".results";
    model = status->path;
  }
  access.offload_name = access.offload_directory;
  access.offload = std::make_shared<LateDirectory>(access.offload_directory, std::move(model));
}

bool is_server([[maybe_unused]] const std::string& url) {
#if ONCE_AWS
  return stores::is_server_url(url);
#else
  return false;
#endif
}

// Of a command that works on the store itself, beside the server.
std::string own_store_of(std::string url) {
  constexpr std::string_view on_demand = "once+";
  if (!is_server(url)) return url;
  if (url.starts_with(on_demand)) return url.substr(on_demand.size());
  misuse(
      "once:// names a server, which only once run, once sqs and the library use. This command works on the store "
      "itself: run it on the server's host with the --store of the server, or use the console of `once serve --admin`");
}

// This program. If its file was replaced meanwhile, the one that runs.
std::string own_program() {
  std::array<char, PATH_MAX> path{};
  const ssize_t size = readlink("/proc/self/exe", path.data(), path.size());
  const std::string named(path.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  return access(named.c_str(), X_OK) == 0 ? named : "/proc/self/exe";
}

// XDG Base Directory Specification 0.8: $XDG_STATE_HOME, if it is an absolute path, else $HOME/.local/state.
std::string default_path() {
  const auto below = [](const std::string& directory, const char* name) {
    return directory == "/" ? directory + name : directory + "/" + name;
  };
  const std::string state = directory_in("XDG_STATE_HOME");
  if (state.starts_with('/')) return below(state, "once/once.db");
  const std::string home = directory_in("HOME");
  if (!home.starts_with('/')) {
    throw Exception(ErrorKind::misuse,
                    "HOME is not set, so there is no default store: name one with --store or ONCE_STORE");
  }
  return below(home, ".local/state/once/once.db");
}

std::string default_url(const std::string& path) { return "sqlite:" + escape_url(path) + "?create_directories=1"; }

}  // namespace

void refuse_fallback() {
  misuse(
      "fallback= in the store's URL is for once run, once proxy, once sqs and once doctor: this program would claim "
      "without reading the old table. Bring its rows by once import, or give this program the URL without fallback=");
}

std::string take_fallback(StoreOptions& options) {
  std::string& url = options.url;
  if (url.empty()) url = variable("ONCE_STORE");
  if (url.empty() || !stores::Url(url).has("fallback")) return {};
  std::size_t begin = url.find('?') + 1;
  while (!url.substr(begin).starts_with("fallback=")) begin = url.find('&', begin) + 1;
  const std::string value = stores::Url(url).take_text("fallback").value_or("");
  const std::size_t end = std::min(url.find('&', begin), url.size());
  url.erase(begin, end - begin + 1);  // With the '&' behind it, or the one or the '?' before it.
  if (url.ends_with('&') || url.ends_with('?')) url.pop_back();
  if (value.empty()) misuse("fallback= names no file: write fallback=/path/to/old-table.toml, or leave it out");
  const bool is_mode = value == "claim" || value == "read";
  if (is_mode || value.find("://") != std::string::npos) {  // Not shown: a URL may have a password.
    misuse(
        "fallback= names a file that describes the old table: the file has its URL (from = ...), and mode = \"read\", "
        "the only mode");
  }
  return value;
}

void ignore_fallback(StoreOptions& options) {
  if (take_fallback(options).empty()) return;
  say("fallback= is ignored: this command does not read the old table", LogLevel::notice);
}

bool is_offload_url(const std::string& text) {
  return text.starts_with("file:") || text.find("://") != std::string::npos;
}

std::string named_store(const StoreOptions& options) {
  return options.url.empty() ? variable("ONCE_STORE") : options.url;
}

std::string store_url(const StoreOptions& options) {
  std::string url = named_store(options);
  return url.empty() ? default_url(default_path()) : own_store_of(std::move(url));
}

bool names_server(const StoreOptions& options) { return is_server(named_store(options)); }

StoreAccess open_server(const StoreOptions& options) {
  if (options.offload != "none") refuse_at_server(!options.offload.empty(), "--offload");
  StoreAccess access;
#if ONCE_AWS
  access.url = named_store(options);
  stores::ServerOptions server = stores::server_options(access.url);
  if (!server.on_demand.empty()) {
    server.program = own_program();
    server.socket = options.likely_socket;
  }
  access.store = stores::make_server_store(std::move(server));
#endif
  keep_for_ever(access);
  return access;
}

void refuse_at_server(bool is_asked, const std::string& flag) {
  if (!is_asked) return;
  misuse(flag +
         " is for a program that writes the store itself, and with once:// a server does: leave it out, or name the "
         "server's own store in --store. Nothing was run");
}

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

const char* const store_help =
    "The store's URL, as in sqlite:/var/lib/once/once.db (default: $ONCE_STORE, else a file in\n"
    "$XDG_STATE_HOME/once or ~/.local/state/once)";
const char* const offload_help =
    "Where to keep results that are too large for the store: a directory, s3://BUCKET/PREFIX, or none\n"
    "(default: offload=... in the store's URL, else the directory <file>.results if the store is a file)";

void add_store_options(CLI::App& command, StoreOptions& options) {
  command.add_option("--store", options.url, store_help);
  command.add_option("--offload", options.offload, offload_help);
}

std::size_t usable_bytes(const Store& store) {
  constexpr std::size_t room_for_the_rest = std::size_t{64} * 1024;
  const std::size_t most = store.capabilities().max_record_bytes;
  return most > 2 * room_for_the_rest ? most - room_for_the_rest : most / 2;
}

void require_bytes([[maybe_unused]] const std::string& url) {
#if ONCE_AWS
  if (!url.starts_with("dynamodb:")) return;
  if (stores::dynamodb_options(url).dialect != stores::DynamoDbDialect::native) {
    throw Exception(ErrorKind::misuse,
                    "records of a Powertools dialect hold JSON, not the output of commands: use a table of its own, "
                    "without 'dialect' in the store's URL");
  }
#endif
}

#if ONCE_AWS
const char* const which_partition =
    "each function has its own, named after it. Say which one: set AWS_LAMBDA_FUNCTION_NAME, or write "
    "partition_value=idempotency%23FUNCTION into the store's URL (without FUNCTION: the one of all other programs)";

std::string partition_of(const stores::DynamoDbOptions& options) {
  if (options.sort_key.empty() || !options.partition_value.empty()) return options.partition_value;
  const std::string function = variable("AWS_LAMBDA_FUNCTION_NAME");
  return function.empty() ? function : "idempotency#" + function;
}
#endif

std::string told_variables(std::initializer_list<std::pair<const char*, std::string_view>> counting) {
  std::string told;
  for (const auto& [name, value] : counting) {
    if (value.empty() || variable(name) != value) continue;
    told += (told.empty() ? "" : ", ") + std::string(name) + "=" + std::string(value);
  }
  return told;
}

StoreAccess open_access(const StoreOptions& options, Missing missing, IfFallback if_fallback) {
  StoreOptions without = options;
  if (!take_fallback(without).empty() && if_fallback == IfFallback::refuse) refuse_fallback();
  std::string& url = without.url;
  if (url.empty()) {
    const std::string path = default_path();
    struct stat kind {};
    if (missing != Missing::create && stat(path.c_str(), &kind) != 0 && errno == ENOENT) {
      throw Exception(ErrorKind::unavailable, "there is no store yet: " + path +
                                                  " does not exist. `once run` creates it; --store or ONCE_STORE names "
                                                  "another store");
    }
    url = default_url(path);
  }
  url = own_store_of(std::move(url));
  if (missing != Missing::create && url.starts_with("sqlite:")) {
    add_parameter(url, "create", "0");
    if (missing == Missing::read) add_parameter(url, "read_only", "1");
  }
  StoreAccess access;
#if ONCE_AWS
  if (url.starts_with("dynamodb:")) {
    const stores::DynamoDbOptions table = stores::dynamodb_options(url);
    access.raw_scopes = table.dialect != stores::DynamoDbDialect::native;
    if (missing != Missing::create && !table.sort_key.empty() && partition_of(table).empty()) {
      throw Exception(ErrorKind::misuse,
                      "the table has a sort key, and so partitions: " + std::string(which_partition));
    }
  }
#endif
  Backend backend = open_backend(url);
  access.url = std::move(url);
  access.store = std::move(backend.store);
  stores::when_moved(*access.store, [](const std::string& name) {
    say("the store has moved: from now on this program uses " + name);
  });
  if (options.offload != "none") choose_offload(access, options.offload, std::move(backend.offload));
  if (access.offload && !backend.seal_keys.empty() && !access.offload->seals()) {
    access.offload = seal(std::move(access.offload), std::move(backend.seal_keys), backend.seal_writes);
  }
  keep_for_ever(access);
  return access;
}

void add_unshared_store(CLI::App& command, bool& allowed) {
  command.add_flag("--unshared-store", allowed, unshared_store_help);
}

void require_shared(const Store& store, bool allowed) {
  if (allowed || store.capabilities().shared) return;
  throw Exception(ErrorKind::misuse,
                  store.name() +
                      " exists only in this process, so the next process would run the same again: use a file, as in "
                      "--store sqlite:once.db, or add --unshared-store if you mean it");
}

StoreAccess open_to_look(const StoreOptions& options, Missing missing, IfFallback if_fallback) {
  StoreOptions without = options;
  if (if_fallback == IfFallback::ignore) ignore_fallback(without);
  StoreAccess access = open_access(without, missing, if_fallback);
  try {
    operate::learn_now(*access.store, *system_clock());  // The first answer shows whether the table exists.
  } catch (const Exception& error) {
    if (error.kind() != ErrorKind::misuse) throw;
    throw Exception(ErrorKind::unavailable, error.what());
  }
  return access;
}

const char* const sweep_interval_help = "How often to remove expired records from the store; 0 or off: never";

std::function<std::optional<StoreSize>()> size_of_server([[maybe_unused]] const std::string& url) {
#if ONCE_POSTGRESQL
  const bool is_server = url.starts_with("postgresql:") || url.starts_with("postgres:");
  if (!is_server || url.find("moves_to=") != std::string::npos) return {};
  return [url]() -> std::optional<StoreSize> {
    try {
      const stores::SchemaSize size = stores::postgresql_size(stores::postgresql_options(url));
      return StoreSize{.records = size.records, .bytes = size.bytes};
    } catch (const Exception&) {
      return std::nullopt;  // The look's own questions tell what is wrong with the store.
    }
  };
#else
  return {};
#endif
}

}  // namespace once::cli
