// Which store a command works on, and how to open it.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <once/offload.hpp>
#include <once/store.hpp>

#include "operators/store_access.hpp"
#include "operators/store_look.hpp"
#include "output/names.hpp"

namespace CLI {
class App;
}

namespace once::stores {
struct DynamoDbOptions;
}

namespace once::cli {

struct StoreOptions {
  std::string url;      // --store
  std::string offload;  // --offload: where results are kept that are too large for the store: a directory, a URL, or
                        // "none". Empty: from the store's URL, otherwise beside the store.
  std::string likely_socket = {};  // Where a server on demand may be. Empty: not known.
};

// --store, otherwise $ONCE_STORE, as it was written. Empty: neither is set.
std::string named_store(const StoreOptions& options);

// Help texts of the two.
extern const char* const store_help;
extern const char* const offload_help;

void add_store_options(CLI::App& command, StoreOptions& options);

enum class Missing {
  create,  // Create a missing store.
  refuse,  // Exception(unavailable), for operators' commands.
  read,    // The same, and a file is opened only to be read: no permission to write is needed.
};

// What a command does about fallback=FILE in the store's URL, which names another program's table that is read before a
// new claim. Commands that do so open the store with importing::open_with_fallback().
enum class IfFallback : std::uint8_t {
  refuse,  // Exception(misuse): the command claims without a look, or may let others do so.
  ignore   // The command claims nothing.
};
// Throws Exception(misuse), which says so.
[[noreturn]] void refuse_fallback();
// Takes it out of the URL, and leaves the rest as it was written. Without a URL, $ONCE_STORE becomes the URL first.
// Returns FILE; empty: there is none. Throws Exception(misuse) for a value that cannot be a file.
std::string take_fallback(StoreOptions& options);
// The same, for commands that claim nothing: prints that it is ignored.
void ignore_fallback(StoreOptions& options);

#if ONCE_AWS
// The partition of a store in a table with a sort key. Empty: the table has none, or the URL leaves it to the
// function's name, and this is not a function. For that case which_partition says what to do.
std::string partition_of(const stores::DynamoDbOptions& options);
extern const char* const which_partition;
#endif

// "ONCE_LEASE=5m, ONCE_WAIT=5s": those of these variables whose value comes from the environment.
std::string told_variables(std::initializer_list<std::pair<const char*, std::string_view>> counting);

// A variable of the environment. Empty: not set.
std::string variable(const char* name);

// --store, otherwise $ONCE_STORE, otherwise that of a file in the user's state directory ($XDG_STATE_HOME, if it is an
// absolute path, else $HOME/.local/state), as open_access() opens it. Throws Exception(misuse) if there is none.
std::string store_url(const StoreOptions& options);

// Whether --offload is a URL. Otherwise it is a directory, "none" or empty.
bool is_offload_url(const std::string& text);

// Opens --store, otherwise $ONCE_STORE, otherwise a file in the user's state directory. Throws Exception as
// open_store() does; with Missing::refuse also if the partition of a table is not known.
StoreAccess open_access(const StoreOptions& options, Missing missing, IfFallback if_fallback = IfFallback::refuse);

// For operators' commands. Throws Exception(unavailable) for a missing table or file.
StoreAccess open_to_look(const StoreOptions& options, Missing missing = Missing::read,
                         IfFallback if_fallback = IfFallback::ignore);

// --unshared-store, for commands whose next process does the same work.
inline constexpr const char* unshared_store_help =
    "Accept a store that only this process sees, such as memory:. It prevents no duplicates in another or later one";
void add_unshared_store(CLI::App& command, bool& allowed);
// Throws Exception(misuse) for a store that only this process sees, unless that is allowed.
void require_shared(const Store& store, bool allowed);

// How many bytes of a result fit into a record, beside its key, texts and steps.
std::size_t usable_bytes(const Store& store);

// Throws Exception(misuse) if the store cannot keep any bytes, as a command's output may be. Called before the command
// runs.
void require_bytes(const std::string& url);

// Whether --store, otherwise $ONCE_STORE, names a server: once://… or once+STORE.
bool names_server(const StoreOptions& options);
// The store of that server. Throws Exception as open_store() does, and misuse for --offload.
StoreAccess open_server(const StoreOptions& options);
// What belongs to whoever writes the store, with a server. Throws Exception(misuse) if `is_asked`, naming the flag.
void refuse_at_server(bool is_asked, const std::string& flag);

// Help text of --sweep-interval.
extern const char* const sweep_interval_help;

// StoreLookOptions::size for the store of this URL; empty if that is not told. Where records move, not until the URL
// names one store.
std::function<std::optional<StoreSize>()> size_of_server(const std::string& url);

}  // namespace once::cli
