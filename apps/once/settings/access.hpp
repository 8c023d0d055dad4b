// Which store a command works on, and how to open it.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <once/offload.hpp>
#include <once/store.hpp>

namespace CLI {
class App;
}

namespace once::stores {
struct DynamoDbOptions;
}

namespace once::cli {

struct StoreOptions {
  std::string url;      // --store
  std::string offload;  // --offload: where results lie that are too large for the store: a directory, a URL, or "none".
                        // Empty: what the store's URL says, else beside the store.
};

// Help texts of the two.
extern const char* const store_help;
extern const char* const offload_help;

void add_store_options(CLI::App& command, StoreOptions& options);

struct StoreAccess {
  std::string url;
  std::shared_ptr<Store> store;
  std::shared_ptr<Offload> offload;  // Empty: none.
  std::string offload_name;          // For people. Empty: none.
  std::string offload_directory;     // Empty: it is none. It may not exist yet.
  bool raw_scopes = false;           // Of a Powertools dialect: in its keys a scope stands as it is, '%' and '#' too.
};

enum class Missing {
  create,  // Make a store that is not there.
  refuse,  // Exception(unavailable): for commands that look at what is there.
};

#if ONCE_AWS
// The partition that a store keeps to in a table with a sort key. Empty: the table has none, or the URL leaves it to
// the function's name, and this is no function: then which_partition says what to do.
std::string partition_of(const stores::DynamoDbOptions& options);
extern const char* const which_partition;
#endif

// "ONCE_LEASE=5m, ONCE_WAIT=5s": of these variables and the values that count, those that come from the environment.
std::string told_variables(std::initializer_list<std::pair<const char*, std::string_view>> counting);

// A variable of the environment. Empty: it is not set.
std::string variable(const char* name);

// --store, else $ONCE_STORE, else a file in the user's state directory. Throws Exception as open_store() does; with
// Missing::refuse also if nobody can tell which partition of a table is meant.
StoreAccess open_access(const StoreOptions& options, Missing missing);

// For commands that look at what is there. A store that is not there, whichever kind it is, cannot be used: throws
// Exception(unavailable) for a missing table as for a missing file.
StoreAccess open_to_look(const StoreOptions& options);

// The output of a command is bytes, which not every store's records can hold. Better said before it has run: throws
// Exception(misuse).
void require_bytes(const std::string& url);

// Puts the bytes of a result into the record that lie outside it, or are compressed in it. Waits. Gives what went
// wrong: a record is worth showing without its result.
std::vector<std::string> fetch_result(const StoreAccess& access, Record& record);

}  // namespace once::cli
